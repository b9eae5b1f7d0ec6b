"""``shoal join`` and ``shoal leave``: add or remove a server, worker or peer of a live run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.common import (
    CommandError,
    asks_for_keys,
    command,
    no_answer,
    option,
    out_folder,
    print_json,
    run_or_address,
    say,
)
from shoal.cli.launch import of_a_server, of_a_worker, take_part, taking_part
from shoal.signals import handled

if TYPE_CHECKING:
    from shoal.strategies.peers.join import JoinedRun

_WITHIN = 30.0  # seconds: the run may be restarting


@command
@run_or_address
@option(
    "--as",
    "role",
    type=click.Choice(["server", "worker"]),
    help="Join as this; in a run of peers every node is a peer.",
)
@out_folder("A peer writes its model, figures and events here, as a run's folder.")
@of_a_server
@of_a_worker
@taking_part
def join(where: str, role: str | None, out: Path | None, **options: Any) -> None:
    """Take part in a run that is under way: its folder, or the address of its
    coordinator; of a run of peers, that of any.

    \b
    shoal train clicks --servers 2 --out runs/one
    shoal join runs/one --as server
        in another terminal: it gets its share of the model
    shoal join tcp://10.0.0.1:7000 --as worker --count 4
        on another host, where the same rows are
    \b
    shoal train rcv1 --strategy peer-to-peer --workers 2 --out runs/p2p
    shoal join runs/p2p

    Ctrl-C leaves in order: others take over what a server has, a worker finishes what it has
    begun, a peer tells what it learned. Again: at once. A peer whose others are all gone goes on
    alone to the end of the run. Exit code 1 if the run failed or nobody is there.
    """
    from shoal.errors import Invalid
    from shoal.inspect.status import address_of, is_of_peers, look_at, safety_for

    with _answering(where):
        safety = safety_for(where, options["keys"], options["insecure"])
        peers = is_of_peers(where, safety)
        if not peers and role is None:
            with contextlib.closing(look_at(address_of(where), safety)) as looking:
                looking.look()
            raise Invalid(f"{where} has servers and workers: say what it is to be (--as server, or --as worker)")
    if peers:
        _join_peers(where, role, out, options)
        return
    if out is not None:
        raise CommandError("--out is for a peer, which has the whole model: leave it away")
    others = {"server": ("data",), "worker": ("listen", "advertise")}[str(role)]
    if wrong := [f"--{name}" for name in others if options.pop(name)]:
        raise CommandError(f"{' and '.join(wrong)}: that is of no use to a {role}, leave it away")
    take_part(where, role, **{**options, "within": options["within"] or _WITHIN})


def _join_peers(where: str, role: str | None, out: Path | None, options: dict[str, Any]) -> None:
    from shoal.strategies.peers import join as peers

    if role is not None:
        raise CommandError(f"{where} is a run of peers, which all do the same: leave --as away")
    if out is not None and out.exists() and any(out.iterdir()):
        raise CommandError(f"{out} is not empty: choose another folder")
    closing, asked = threading.Event(), threading.Event()
    with _leaving(closing, asked):
        joined = peers.join(where, (lambda text: None) if options["quiet"] else say, closing, asked)
    _show(joined, out)
    if joined.failed:
        raise SystemExit(1)


@command
@run_or_address
@click.argument("name")
@asks_for_keys
def leave(where: str, name: str, keys: str | None, insecure: bool) -> None:
    """Let a node go while the run goes on: others take over what a server has; a worker
    or peer finishes what it is at.

    \b
    shoal leave runs/one server-2
    shoal leave tcp://10.0.0.1:7000 worker-hostb-3f2a

    Exit code 1 if it cannot go (and why), if nothing changes for a minute, or nobody is there.
    """
    from shoal.inspect.drain import let_go
    from shoal.inspect.status import address_of, is_of_peers, look_at, safety_for
    from shoal.strategies.peers import join as peers

    with _answering(where):
        safety = safety_for(where, keys, insecure)
        if is_of_peers(where, safety):
            peers.leave(where, name, say)
        else:
            # the node learns who asked
            with contextlib.closing(look_at(address_of(where), safety, "operator")) as looking:
                let_go(looking, name, say)
    click.echo(f"{name} has left")


@contextlib.contextmanager
def _answering(where: str) -> Iterator[None]:
    """Refuse a run that nobody can join or leave, and one that does not answer."""
    from shoal.errors import Invalid, Unanswered
    from shoal.inspect.status import job_of

    if (job := job_of(where)) is not None and not job.strategy.can_be_watched:
        raise Invalid(
            f"{where} is a run by {job.strategy.name}, which nobody joins or leaves: that is for runs with servers, and for runs of peers "
            f"(--strategy peer-to-peer)"
        )
    try:
        yield
    except Unanswered:
        raise no_answer(f"nobody answers at {where}", where) from None


def show_peers(where: str, as_json: bool) -> None:
    from shoal.events import counted
    from shoal.schedule.stop_rules import ENDLESS
    from shoal.strategies.peers import join as peers

    account = peers.status(where)
    if as_json:
        print_json(_named(account))
        return
    state = f"over: {account.over}" if account.over else "learning"
    passes = f"{account.done / account.per_pass:.2f}"
    if account.limit < ENDLESS:
        passes += f" of {account.limit / account.per_pass:g}"
    click.echo(f"{counted(len(account.peers), 'peer')}, {passes} epochs in {account.seconds:.1f} s, {state}")
    for peer in account.peers:
        click.echo(f"  {peer.name:<12} {peer.address}{'  leads' if peer.life == account.lead else ''}")
    for life, why in account.gone.items():
        click.echo(f"  {life.partition('.')[0]:<12} gone: {why or 'it left'}")
    if account.judged:
        last = account.judged[-1]
        loss = "not finite" if last.loss is None else f"{last.loss:.4f}"
        click.echo(f"test loss {loss} at epoch {last.done / account.per_pass:.2f} (evaluation {last.number})")


def _named(value: Any) -> Any:
    """Array-like structs as mappings with field names."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    return [_named(one) for one in value] if isinstance(value, list) else value


def _leaving(closing: threading.Event, asked: threading.Event) -> contextlib.AbstractContextManager[None]:
    """Make the first signal leave in order, and the second end the process."""

    def hear(number: int, frame: object) -> None:
        if asked.is_set():
            closing.set()
            raise KeyboardInterrupt(" at once: what was learned since it told last is lost to the others")
        asked.set()
        say("leaving when what it is at is told (again: at once)")

    return handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), hear)


def _show(joined: JoinedRun, out: Path | None) -> None:
    import msgspec

    from shoal.events import counted

    learned = f"{joined.name} has learned from {counted(joined.slots, 'slot')}"
    if not joined.why:
        click.echo(f"{learned}, and left; the run goes on")
        return
    loss = joined.judged.get("loss")
    click.echo(f"{learned}; the run is over: {joined.why}" + ("" if loss is None else f" (test loss {loss:.4f})"))
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    assert joined.job is not None
    joined.model.save(out / "model.safetensors")
    (out / "job.toml").write_text(joined.job.toml())
    (out / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in joined.events))
    facts = {
        "strategy": "peer-to-peer",
        "joined_as": joined.name,
        "slots_learned": joined.slots,
        "steps": joined.done,
        "test_loss": loss,
        "metrics": joined.judged.get("metrics", {}),
        "seconds": joined.judged.get("now"),
        "stopped_because": joined.why,
        "failed": joined.failed,
    }
    (out / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")
    name = click.format_filename(out)
    click.echo(f"its model and what it heard of the run are in {name}; look at it: shoal report {name}")
