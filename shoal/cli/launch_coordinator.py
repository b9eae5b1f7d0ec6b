"""``shoal launch coordinator``: a run or a store with nodes on other hosts."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal import limits
from shoal.cli.common import finished_run, job_from, new_run, on_interrupt, say, settings_from
from shoal.errors import ClusterError, Invalid
from shoal.inspect.status import ADDRESS, write_address
from shoal.job import Job, LaunchSettings
from shoal.launch.addresses import bind_of, check_callable, check_free
from shoal.launch.processes import check_listening
from shoal.launch.remote_cluster import RemoteCluster, RemoteHosts, nodes_may_run, nodes_may_run_in
from shoal.launch.saved_store import SavedStore, lock_folder, saved_in
from shoal.nodes.journal import JournalFile
from shoal.security.safety import Safety
from shoal.signals import handled
from shoal.timing import timing_from

if TYPE_CHECKING:
    from shoal.run.finished import Run

_SETTLED = 1.5  # times ``timing.dead``
_LOOK = 0.5  # seconds between checks of the coordinator


def run(options: Mapping[str, Any]) -> Run:
    from shoal.run.resume import reopen
    from shoal.run.run import execute
    from shoal.views.terminal import view

    out, settings = options["out"], settings_from(options)
    if options["data"] is None:
        if (ended := finished_run(out, settings)) is not None:
            return ended
        job, folder = reopen(out, settings)
    else:
        is_file = options["data"].endswith(".toml")
        job = job_from(options["data"], settings if is_file else {"workers": 1, **settings})
        folder = new_run(job, out)
    try:
        _check(job)
    except Invalid:
        folder.discard()
        raise
    with view(epochs=job.stop.passes, verbosity=job.verbosity) as show:
        hosting = RemoteHosts(show.note, options["within"] or limits.HOSTS_WITHIN / limits.SECOND)
        running = not folder.is_new and nodes_may_run_in(folder.path)
        if running:
            show.note("it goes on with those who are still there")
        hears = None if options["as_json"] and not sys.stderr.isatty() else show
        waits = f" (who is here waits {job.timing.intervals().patience / limits.SECOND:g} s for that)"
        with ending(hosting.expect_another), on_interrupt(lambda: _left(folder.path), waits):
            found: Run = execute(job, folder, hears, show.note, launcher=hosting, nodes_may_run=running)
    return found


def _left(folder: Path) -> str:
    if (folder / "job.toml").exists():
        return f"; go on with it: shoal launch coordinator --out {click.format_filename(folder)}"
    if not folder.exists():
        say(f"nothing had begun, so {click.format_filename(folder)} is not there any more: start it as before")
    return ""


def _check(job: Job) -> None:
    if not job.strategy.on_servers:
        raise Invalid(
            f"strategy {job.strategy.name!r} has no servers that could come from elsewhere: take sync, bounded, async or "
            f"block-proximal; a run of peers is joined by shoal join"
        )
    if job.launch.how != "processes":
        raise Invalid(f"launch.how={job.launch.how!r}: nodes that come from elsewhere are processes: leave it out")
    if not job.launch.listen:
        raise Invalid("nobody could join: say where to listen (--listen tcp://ADDRESS:PORT)")
    check_listening(job)


def store(options: Mapping[str, Any]) -> None:
    ignored = ("workers", "model", "strategy", "epochs", "seed", "verbosity")
    changes = options["changes"]
    others = [f"--set {name}" for name in changes if not name.startswith("timing.")]
    if wrong := [f"--{name}" for name in ignored if options[name] is not None] + others:
        raise Invalid(f"a store trains nothing ({', '.join(wrong)}): give DATA or a JOB.toml, or leave these away")
    timing = timing_from({name.removeprefix("timing."): value for name, value in changes.items()}) if changes else None
    if not options["listen"]:
        raise Invalid("nobody could join: say where to listen (--listen tcp://ADDRESS:PORT), or give DATA to train on")
    bind, advertise = bind_of(options["listen"]), options["advertise"] or ""
    check_callable(options["listen"], advertise)
    safety = Safety.chosen(options["keys"], options["insecure"], at=bind)
    safety.check(bind)
    check_free(bind)
    with _kept(options["out"]) as folder:
        journal = JournalFile(None if folder is None else folder / "coordinator.journal")
        known = nodes_may_run(journal)
        within = options["within"] or limits.HOSTS_WITHIN / limits.SECOND
        launch = LaunchSettings(listen=options["listen"], advertise=advertise)
        nodes = (options["servers"] or 0, launch, journal, safety, options["copies"] or 1)
        cluster = RemoteCluster(*nodes, say, within)
        found = None if folder is None else saved_in(cluster, folder)
        cluster.timing = timing

        def expect_another() -> None:
            cluster.close_reason = ""

        with cluster, ending(expect_another):
            cluster.start()
            if folder is not None:
                write_address(folder, cluster.address)
            say(f"servers: shoal launch server --at {cluster.address}; programs: shoal.connect({cluster.address!r})")
            if found is not None:
                _reopen(cluster, found, _SETTLED * cluster.look().timing.dead / limits.SECOND if known else 0.0)
            pause = threading.Event()
            while not cluster.ended:
                pause.wait(_LOOK)
            raise ClusterError(cluster.ended)


def _reopen(cluster: RemoteCluster, found: SavedStore, settled: float) -> None:
    """Restore tables that no server holds from the checkpoint; returns when all exist.

    For ``settled`` seconds earlier servers may still count as members; then it is known which are
    gone.
    """
    began, pause = time.monotonic(), threading.Event()
    with cluster.client() as kv:
        while not cluster.ended:
            if cluster.servers() and not found.is_here(kv):
                names = found.restore(kv)
                say(f"{', '.join(names)}: as saved in {click.format_filename(found.folder)}")
            elif cluster.servers() and time.monotonic() - began >= settled:
                return
            pause.wait(_LOOK)


@contextlib.contextmanager
def _kept(out: Path | None) -> Iterator[Path | None]:
    if out is None:
        yield None
        return
    lock = lock_folder(out, "--out")
    try:
        yield out.absolute()
    finally:
        (out / ADDRESS).unlink(missing_ok=True)
        lock.release()


def ending(expect_another: Any) -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP end it within the context; nodes then wait for its restart."""

    def end(number: int, frame: object) -> None:
        expect_another()
        raise SystemExit(128 + number)

    return handled((signal.SIGTERM, signal.SIGHUP), end)
