"""Trains a model (``train``, ``execute``) and describes the result: a ``Run``.

run = shoal.train("rcv1", strategy="async", workers=4, servers=2, out="runs/first")
run.summary["metrics"]["accuracy"], run.model.predict(rows), run.plot()
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.errors import Invalid, RunFailed
from shoal.events import Evaluated, Progress, Resumed, RolledBack, RunEvent, Started, Stopped, Voided, counted
from shoal.job import Job
from shoal.limits import MB
from shoal.run.finished import Run
from shoal.run.folder import EventCall, EventListener, EventLog, RunFolder, save_elsewhere
from shoal.run.resume import ResumedRun, finished, open_folder, reopen, resume_state, running_state
from shoal.settings_tree import changed
from shoal.signals import deferred
from shoal.timing import Timing, timing_from
from shoal.training.tracked_run import RunHandle, RunStart

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset
    from shoal.launch.cluster import Cluster
    from shoal.models.learner import Learner
    from shoal.strategies.parameter_server.run import Launcher
    from shoal.training.tracker import RunResult

WHOLE_MODELS = 3  # models in memory at once: the evaluated, the last, the best


def train(
    data: str | os.PathLike[str] | Job | None = None,
    *,
    model: str | None = None,
    strategy: str | None = None,
    workers: int | None = None,
    servers: int | None = None,
    copies: int | None = None,
    seed: int | None = None,
    test: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target_loss: float | None = None,
    patience: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: EventCall | None = None,
    progress: Callable[[str], None] | None = None,
    view: bool = False,
    cluster: str | Cluster | None = None,
    group: str | None = None,
    timing: Timing | Mapping[str, float] | None = None,
) -> Run:
    """Train a model on this machine; returns when it is done.

    ``data`` is a name (`shoal data list`), a path, a job file (.toml) or a Job. ``settings`` are
    any other settings by their names in a job file, such as {"update.step": 0.05}. With ``out`` a
    run folder is written; an unfinished run of the same job there is resumed. ``resume`` is the
    folder of a run to resume with its own job; workers, servers and stop rules may change.

    ``view`` shows the run on standard error. ``on_event`` is called with every event, on a thread
    of its own: the run does not wait for it, and drops it if it raises (KeyboardInterrupt ends the
    run).

    Ctrl-C raises KeyboardInterrupt with an attribute ``run``, with the model so far. It is also
    in ``out``, or else in a temporary folder that the message names (``Run.load`` reads it).

    With ``cluster`` (an address, a run's folder or a cluster) the run uses those servers, and its
    workers are a ``group`` there. ``timing`` sets how long nodes wait for each other, in seconds:
    {"dead": 20}, or {"scale": 4} for all.
    """
    given = {
        "model": model,
        "strategy": strategy,
        "workers": workers,
        "servers": servers,
        "copies": copies,
        "seed": seed,
        "data.test": None if test is None else os.fspath(test),
        "data.batch": batch,
        "stop.epochs": epochs,
        "stop.steps": steps,
        "stop.seconds": seconds,
        "stop.target_loss": target_loss,
        "stop.patience": patience,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if timing is not None:
        set_by_name = msgspec.structs.asdict(timing_from(timing))
        changes |= {f"timing.{name}": value for name, value in set_by_name.items() if value is not None}
    changes |= settings or {}
    folder: Path | RunFolder | None = None if out is None else Path(out)
    if resume is not None:
        if data is not None or out is not None:
            raise Invalid("resume continues the run in its folder, with its data: give neither data nor out")
        if (ended := finished(Path(resume), changes)) is not None:
            return ended
        job, folder = reopen(Path(resume), changes)
    elif isinstance(data, Job):
        job = Job.of(changed(msgspec.to_builtins(data), changes))
    elif data is None:
        raise Invalid("nothing to train on: give a name (`shoal data list`), a file or a Job: shoal.train('clicks')")
    elif os.fspath(data).endswith(".toml"):
        job = Job.load(Path(data), changes)
    else:
        job = Job.of(changed({"data": os.fspath(data)}, changes))
    launcher: Launcher | None = None
    if cluster is not None or group is not None:
        from shoal.strategies.parameter_server.group_cluster import guest

        job, launcher = guest(job, cluster, group)
    said = None if progress is None else EventListener(progress, "progress")
    try:
        if not view:
            return execute(job, folder, on_event, said, launcher=launcher)
        from shoal.views.terminal import view as views

        with views(epochs=job.stop.passes, verbosity=job.verbosity) as show:
            hears: list[EventCall] = [show] if on_event is None else [show, on_event]
            return execute(job, folder, hears, said or show.note, show.follow, launcher)
    except KeyboardInterrupt as error:
        with contextlib.suppress(KeyboardInterrupt), deferred():  # a second Ctrl-C changes nothing
            _interrupted(error)
        raise
    finally:
        if said is not None:
            said.close()


def _interrupted(error: KeyboardInterrupt) -> None:
    """Add to the message where the model is; without ``out``, save it to a temporary folder."""
    run = vars(error).get("run")
    if not isinstance(run, Run):
        return  # it had not begun
    if run.folder is None:
        with contextlib.suppress(OSError):  # no room: it is still in memory
            run.folder = save_elsewhere(run, f"shoal-{run.summary['data'][:64]}-interrupted-")
    where = "" if run.folder is None else f", and in {run.folder}"
    # KeyboardInterrupt itself: Python and the shell recognise Ctrl-C only by that class.
    error.args = (f"what was learned so far is the error's .run (sys.last_value.run, if nobody caught it){where}",)


def execute(
    job: Job,
    out: Path | RunFolder | None = None,
    on_event: EventCall | Sequence[EventCall] | None = None,
    progress: Callable[[str], None] | None = None,
    started: Callable[[Any], None] | None = None,
    launcher: Launcher | None = None,
    nodes_may_run: bool = False,
) -> Run:
    """Run a job to its end.

    ``started`` is called with the running run, to add or drain workers. ``launcher`` makes the
    cluster if the job does not say where the nodes are. ``nodes_may_run``: nodes of an earlier
    process may still run.

    A run that fails raises RunFailed, and its last evaluated model is saved. An interrupted run
    (Ctrl-C) raises KeyboardInterrupt, and its model is evaluated and saved. In all cases everything
    that was started has ended.
    """
    from shoal.data.datasets import load
    from shoal.launch.processes import check_listening
    from shoal.training.preflight import check, check_same, import_own, starting

    say: Callable[[str], None] = progress or (lambda what: None)
    folder = open_folder(out, job) if isinstance(out, Path) else out
    state: ResumedRun | None = None
    log: EventLog | None = None
    try:
        check_listening(job)  # before slow steps
        import_own(job)
        dataset = load(job.data, job.seed, progress=progress)
        for note in dataset.notes:
            say(note)
        learner = check(job, dataset)
        _check_room(learner, dataset)
        if folder is not None and not folder.is_new:
            was = Job.load(folder.path / "job.toml")
            state = running_state(folder, dataset) if nodes_may_run else resume_state(folder, was, job, dataset)
            if state.checkpoint is not None:
                check_same(learner, state.checkpoint)
        log = EventLog(folder, on_event, () if state is None else state.before, job.verbosity)
        path = None if folder is None else folder.path
        begin = (
            partial(folder.begin_again, job, state.fresh) if folder is not None and state is not None else lambda: None
        )
        start = RunStart(job, dataset, log, path, None if state is None else state.checkpoint, launcher)
        training = make_run(start, begin)
        for event in () if state is None else state.news:
            log(event)
    except BaseException:
        if log is not None:
            log.settle()
        if folder is not None:
            folder.discard()
        raise
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.callback(folder.release)
        stack.callback(log.close)  # after the results are saved: it may be slow
        say(starting(job, launcher))
        return _run(job, dataset, training, log, folder, started)


def _run(
    job: Job,
    dataset: Dataset,
    training: RunHandle,
    log: EventLog,
    folder: RunFolder | None,
    started: Callable[[Any], None] | None,
) -> Run:
    from shoal.launch import mpirun_rank

    outcome: RunResult | None = None
    later: BaseException | None = None  # raised after the results are saved
    began, clock = _cpu(), time.monotonic()
    try:
        with training:
            try:
                if started is not None:
                    started(training)
                outcome = training.wait()
            except (KeyboardInterrupt, SystemExit) as error:
                later = error
                outcome = training.interrupted()
    except BaseException as error:
        later = error
        if outcome is None and not isinstance(error, KeyboardInterrupt | SystemExit):
            log.settle()
            if folder is not None and not _began(log):
                folder.discard()
            raise
    if later is not None and folder is not None and not _began(log):
        log.settle()
        folder.discard()
        raise later
    run: Run | None = None
    outcome = _fail_if_nothing_learned(outcome or training.outcome(), log)
    try:
        with deferred():  # Ctrl-C now would leave a folder without its summary
            if not any(isinstance(event, Stopped) for event in log.new):
                log(Stopped(seconds=outcome.seconds, why=outcome.why))
            log.settle()
            cost = None if mpirun_rank.rank() else (_cpu() - began, time.monotonic() - clock)
            model = None if outcome.judged is None else training.learner.keep(outcome.judged.weights)
            try:
                summary = summarise(job, dataset, outcome, log.events, cost)
            except BaseException:
                if folder is not None and model is not None:
                    folder.keep(model)  # a failing summary must not lose the model
                raise
            run = Run(job, model, summary, log.events, None if folder is None else folder.path)
            if folder is not None:
                try:
                    run.folder, run.rescued = folder.save(run), folder.rescued
                except RunFailed as error:
                    run.folder, error.run = None, run
                    raise
    except (KeyboardInterrupt, SystemExit) as error:
        if run is None:
            raise
        later = later or error
    if later is not None:
        vars(later)["run"] = run
        raise later
    if outcome.failed:
        failure = RunFailed(outcome.why, "" if run.folder is None else str(run.folder))
        failure.run = run
        raise failure
    return run


def _fail_if_nothing_learned(outcome: RunResult, log: EventLog) -> RunResult:
    """A failed result if every slot was given up: such a run has learned nothing."""
    voids = [event for event in log.events if isinstance(event, Voided)]
    if outcome.examples or outcome.failed or not voids:
        return outcome
    why = f"nothing was learned: all {counted(len(voids), 'slot')} were given up, the last because {voids[-1].why}"
    return replace(outcome, failed=True, why=why)


def _check_room(learner: Learner, dataset: Dataset) -> None:
    """Refuse a model that does not fit in memory: one stray feature id can make it gigabytes."""
    import psutil

    free, needed = int(psutil.virtual_memory().available), WHOLE_MODELS * 4 * learner.keys * learner.width
    if needed > free:
        raise Invalid(
            f"{dataset.name} has {dataset.features:,} features, and to evaluate and save a model of them takes "
            f"{needed // MB:,} MB, and {free // MB:,} MB are free: hash the ids to fewer (--set data.hash_bits=20)"
        )


def _began(log: EventLog) -> bool:
    return any(isinstance(event, Started) for event in log.events)


def _cpu() -> float:
    """CPU seconds of this process and its ended children; not of ranks that mpirun started."""
    return sum(os.times()[:4])


def summarise(
    job: Job, dataset: Dataset, outcome: RunResult, events: Sequence[RunEvent], cost: tuple[float, float] | None = None
) -> dict[str, Any]:
    """The figures of a run, the same for every strategy; ``cost``: CPU and elapsed seconds."""
    from shoal.views import summary_figures

    judged = outcome.judged
    losses = [event.train_loss for event in events if isinstance(event, Progress | Evaluated)]
    rate = outcome.examples / outcome.computing if outcome.computing > 0 else 0.0
    metrics: dict[str, float | None] = {"accuracy": None, "auc": None}
    return {
        "data": dataset.name,
        "model": job.model.told,
        "strategy": job.strategy.name,
        "workers": job.workers if job.has_workers else 1,
        "servers": job.servers if job.has_servers else 0,
        "seed": job.seed,
        "seconds": round(outcome.seconds, 4),
        "computing_seconds": round(outcome.computing, 4),
        "cpu_seconds": None if cost is None else round(cost[0], 2),
        # including startup, like cpu_seconds; both since the run was last resumed
        "elapsed_seconds": None if cost is None else round(cost[1], 2),
        "steps": outcome.steps,
        "examples": outcome.examples,
        "examples_per_second": round(rate, 1),
        "train_loss": next((loss for loss in reversed(losses) if loss is not None), None),
        "test_loss": None if judged is None else judged.loss,
        "metrics": metrics | (judged.metrics if judged is not None else {}),
        "spread": summary_figures.spread(None if judged is None else judged.loss, events),
        "spent": _spent(events),
        "emulated": job.emulate.words(),
        "bytes_sent": outcome.sent,
        "bytes_received": outcome.received,
        "staleness": summary_figures.staleness(outcome.staleness),
        "stopped_because": outcome.why,
        "failed": outcome.failed,
        "machine": machine(),
        # of the last span, like workers, servers and machine
        "cores": next((event.cores for event in reversed(events) if isinstance(event, Started)), None) or None,
        **_counts(outcome, "workers lost", "servers lost", "coordinator restarts", "slots dealt again"),
        "slots_given_up": sum(isinstance(event, Voided) for event in events),
        **_counts(outcome, "second copies", "second copies first"),
        "lost_updates": summary_figures.lost_updates(outcome.counts),
        "filters": summary_figures.filters(outcome.filtered, outcome.left),
        "handles": summary_figures.handles(outcome.filtered),
        "resumed": sum(isinstance(event, Resumed) for event in events),
        "rollbacks": sum(isinstance(event, RolledBack) for event in events),
    }


def _counts(outcome: RunResult, *names: str) -> dict[str, int]:
    return {name.replace(" ", "_"): outcome.counts.get(name, 0) for name in names}


def machine() -> dict[str, Any]:
    """The machine it ran on; the load is of the last minute, over all processes."""
    import platform

    import psutil

    return {
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory": int(psutil.virtual_memory().total),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": round(os.getloadavg()[0], 2),
    }


def _spent(events: Sequence[RunEvent]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Progress):
            total.update(event.spent)
    whole = sum(total.values())
    return {kind: round(seconds / whole, 4) for kind, seconds in total.items()} if whole else {}


def make_run(start: RunStart, begin: Callable[[], None] = lambda: None) -> RunHandle:
    """The run, not started; ``begin`` is called after all checks, before any write."""
    from shoal.strategies.averaging.mpi import check_alone, check_mpi

    check_alone()
    if start.job.launch.how == "mpi":
        check_mpi(start.job)
    run: RunHandle = importlib.import_module(start.job.strategy.runs).open_run(start, begin)
    return run
