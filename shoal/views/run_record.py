"""A run as its folder records it: events, the figures in them, summary and settings.

The run may still go on, or its files may be damaged: missing values are None or empty, and
impossible ones (a span of negative length, a loss that is not a number) are dropped.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import Invalid
from shoal.events import (
    Delayed,
    Elected,
    Evaluated,
    Gone,
    Handed,
    Joined,
    Leaving,
    Linked,
    Progress,
    Resumed,
    RolledBack,
    RunEvent,
    Saved,
    Shared,
    Spans,
    Split,
    Started,
    Stopped,
    Voided,
    Warned,
    read_legible,
)
from shoal.nodes.time_accounting import KINDS
from shoal.views import format
from shoal.views.members import MembershipHistory, is_over

if TYPE_CHECKING:
    from shoal.job import Job

# ---------------------------------------------------------------- from events to figures


OF_WORKERS = KINDS[:4]
JITTER = 0.004  # seconds between spans: shorter gaps are message latency
BACK = 0.9  # of the rows/s before a fault: it has recovered

Happened = Joined | Gone | Leaving | Handed | Split | Voided | Warned | Resumed | RolledBack | Saved | Linked | Elected
Span = tuple[str, float, float]  # kind, from, to


@dataclass(slots=True)
class NodeMetrics:
    """One worker, or the evaluator."""

    name: str
    role: str = ""
    spans: list[Span] = field(default_factory=list)  # in order, without overlap; maybe not all
    spent: dict[str, float] = field(default_factory=dict)  # seconds by kind, of the whole run
    slots: int = 0
    here: list[tuple[float, float]] = field(default_factory=list)  # from, to; inf: to the end
    exact: bool = False  # spent is reported, not added up from spans

    @property
    def shares(self) -> dict[str, float]:
        whole = sum(self.spent.values())
        return {kind: self.spent.get(kind, 0.0) / whole for kind in KINDS} if whole else {}

    @property
    def per_slot(self) -> float | None:
        """Seconds that it computes for one slot."""
        return self.spent.get("compute", 0.0) / self.slots if self.exact and self.slots else None


@dataclass(slots=True)
class RunMetrics:
    """The sums over a run."""

    started: Started | None = None
    stopped: Stopped | None = None
    seconds: float = 0.0
    progress: list[Progress] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    nodes: dict[str, NodeMetrics] = field(default_factory=dict)  # those with spans, workers first
    spent: dict[str, float] = field(default_factory=dict)  # of all workers
    happened: list[Happened] = field(default_factory=list)
    delays: list[Delayed] = field(default_factory=list)
    attendance: MembershipHistory = field(default_factory=MembershipHistory)
    shared: list[Shared] = field(default_factory=list)  # after each move of segments
    _at: list[float] = field(default_factory=list)  # seconds, rows by then
    _done: list[float] = field(default_factory=list)

    @property
    def workers(self) -> list[NodeMetrics]:
        return [node for node in self.nodes.values() if node.role == "worker"]

    @property
    def shares(self) -> dict[str, float]:
        whole = sum(self.spent.values())
        return {kind: self.spent.get(kind, 0.0) / whole for kind in OF_WORKERS} if whole else {}

    @property
    def computing(self) -> str:
        """The emulated time per row, if any."""
        told = self.started.emulated if self.started is not None else ""
        return told.partition(")")[0] if told.startswith("emulated compute") else ""

    @property
    def finite(self) -> list[Evaluated]:
        """Evaluations whose loss is a number."""
        return [event for event in self.evaluations if math.isfinite(event.test_loss)]

    @property
    def best(self) -> Evaluated | None:
        return min(self.finite, key=lambda event: event.test_loss, default=None)

    @property
    def examples(self) -> int:
        told = [event.examples for event in self.progress[-1:]] + [event.examples for event in self.evaluations[-1:]]
        return max(told, default=0)

    @property
    def slowest(self) -> tuple[NodeMetrics, float] | None:
        """The worker with the longest time per slot, and its ratio to the median of the others."""
        paces = sorted((pace, node.name) for node in self.workers if (pace := node.per_slot))
        if len(paces) < 2:
            return None
        others = [pace for pace, _ in paces[:-1]]
        return self.nodes[paces[-1][1]], paces[-1][0] / median(others)

    def reached(self, loss: float) -> Evaluated | None:
        """The first evaluation at or below a loss."""
        return next((event for event in self.finite if event.test_loss <= loss), None)

    def rate(self, since: float, until: float) -> float | None:
        """Rows a second between two moments; None if one is not recorded."""
        at, done = self._at, self._done
        if not at or not at[0] <= since < until <= at[-1]:
            return None
        return (_between(at, done, until) - _between(at, done, since)) / (until - since)

    def back_after(self, moment: float, window: float = 1.0) -> float | None:
        """Seconds until rows/s were back at 90%, for a second; 0: never fell; inf: not in this run.

        None if too little is recorded before or after.
        """
        before = self.rate(max(0.0, moment - 3 * window), moment)
        if not before or moment < window:
            return None
        later = [event.seconds for event in self.progress if event.seconds >= moment]
        for at in (moment, *later):
            now = self.rate(at, at + window)
            if now is not None and now >= BACK * before:
                return at - moment
        return math.inf if self.rate(moment, moment + window) is not None else None


def account(events: Iterable[RunEvent]) -> RunMetrics:
    one = RunMetrics()
    for event in events:
        if not math.isfinite(event.seconds):
            continue
        one.seconds = max(one.seconds, event.seconds)
        one.attendance.take(event)
        match event:
            case Started():
                one.started, one.stopped = event, None
            case Stopped():
                one.stopped = event
                one.happened = [other for other in one.happened if not is_over(other, event)]
            case Progress():
                one.progress.append(event)
                _add(one.spent, event.spent)
            case Evaluated():
                one.evaluations.append(event)
                _take_each(one, event)
            case Spans():
                _node(one, event.name).spans += [(kind, at, at + length) for kind, at, length in event.spans]
            case Delayed():
                one.delays.append(event)
            case Shared():
                one.shared.append(event)
            case Resumed():
                one.stopped = None
                one.happened.append(event)
            case Joined():
                one.happened.append(one.attendance.as_it_was(event))
            case _:
                one.happened.append(event)
    one._at, one._done = _work(one.progress)
    for node in one.nodes.values():
        _settle(node)
        node.here = _here(node.name, one.happened)
    one.nodes = dict(sorted(one.nodes.items(), key=lambda item: (item[1].role != "worker", format.natural(item[0]))))
    return one


def emulation(text: str) -> str:
    """The sentence about emulation: Emulated compute (1 ms per example)."""
    text = format.clean(text)
    return f"{text[:1].upper()}{text[1:]}." if text.startswith("emulated") else f"Emulated: {text}."


def seconds_of(event: Evaluated) -> float:
    """The time of an evaluation: when its weights were read."""
    return event.seconds if event.read is None else event.read


def began(event: Gone | RolledBack) -> float:
    """When a fault began: a silent node was missing before it was declared dead."""
    silent = re.match(r"silent for ([\d.]+) s\b", event.why) if isinstance(event, Gone) else None
    return max(0.0, event.seconds - float(silent.group(1))) if silent else event.seconds


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _node(one: RunMetrics, name: str) -> NodeMetrics:
    role = "evaluator" if name.startswith("evaluator") else "worker"
    return one.nodes.setdefault(name, NodeMetrics(name, role))


def _take_each(one: RunMetrics, event: Evaluated) -> None:
    for name, did in event.each.items():
        node = _node(one, name)
        node.exact = True
        node.slots += int(did.get("slots", 0))
        _add(node.spent, did)


def _add(total: dict[str, float], more: dict[str, float]) -> None:
    for kind, seconds in more.items():
        if kind in KINDS and math.isfinite(seconds) and seconds > 0:
            total[kind] = total.get(kind, 0.0) + seconds


def _work(progress: Sequence[Progress]) -> tuple[list[float], list[float]]:
    """Rows computed by each record, including repeats after a rollback."""
    at, done, last = [0.0], [0.0], 0
    for event in progress:
        if event.seconds > at[-1]:
            at.append(event.seconds)
            done.append(done[-1] + max(0, event.examples - last))
        last = event.examples
    return (at, done) if len(at) > 1 else ([], [])


def _here(name: str, happened: Sequence[Happened]) -> list[tuple[float, float]]:
    """When a node took part."""
    stays: list[tuple[float, float]] = []
    for event in happened:
        if isinstance(event, Joined) and event.name == name and not (stays and stays[-1][1] == math.inf):
            stays.append((event.seconds, math.inf))
        elif isinstance(event, Gone) and event.name == name and stays:
            stays[-1] = (stays[-1][0], min(stays[-1][1], event.seconds))
    return stays or [(0.0, math.inf)]


def _settle(node: NodeMetrics) -> None:
    """Sort spans, and shorten later ones that overlap by message latency."""
    settled: list[Span] = []
    for kind, start, stop in sorted((one for one in node.spans if _is_sound(one)), key=lambda one: one[1]):
        end = settled[-1][2] if settled else -math.inf
        start = end if start < end + JITTER else start
        if stop <= start:
            continue
        if settled and settled[-1][0] == kind and start == end:
            settled[-1] = (kind, settled[-1][1], stop)
        else:
            settled.append((kind, start, stop))
    node.spans = settled
    if not node.exact:
        node.spent = {}
        for kind, start, stop in settled:
            _add(node.spent, {kind: stop - start})


def _is_sound(span: Span) -> bool:
    kind, start, stop = span
    return kind in KINDS and math.isfinite(start) and math.isfinite(stop) and 0 <= start <= stop


def _between(at: Sequence[float], done: Sequence[float], moment: float) -> float:
    right = min(max(1, bisect.bisect_left(at, moment)), len(at) - 1)
    share = (moment - at[right - 1]) / (at[right] - at[right - 1])
    return done[right - 1] + share * (done[right] - done[right - 1])


CLOCK_STOPS = ("serial", "averaging", "allreduce", "hogwild", "gossip")  # during an evaluation
NEVER_LATE = ("serial", "allreduce", "hogwild", "gossip")  # no push can be stale


@dataclass(slots=True)
class RunRecord:
    """One run to report on."""

    name: str
    run: RunMetrics
    summary: dict[str, Any] = field(default_factory=dict)  # empty: it has not ended
    job: Job | None = None
    problems: list[str] = field(default_factory=list)
    folder: Path | None = None

    @property
    def strategy(self) -> str:
        return format.clean(self.run.started.strategy) if self.run.started else ""

    @property
    def emulated(self) -> str:
        return format.clean(self.run.started.emulated) if self.run.started else ""

    @property
    def speed(self) -> float | None:
        """Rows a second, without the final evaluation."""
        rate = format.number(self.summary.get("examples_per_second"))
        if rate:
            return rate
        last = self.run.progress[-1] if self.run.progress else None
        return last.examples / last.seconds if last and last.seconds > 0 else None

    @property
    def cpu(self) -> float | None:
        """CPU seconds of all its processes; None if not recorded."""
        return format.number(self.summary.get("cpu_seconds"))

    @property
    def staleness(self) -> tuple[list[int], float, int, int] | None:
        """The staleness of pushes: histogram, mean, 95th percentile, highest."""
        told = self.summary.get("staleness") if self.strategy not in NEVER_LATE else None
        if not isinstance(told, dict) or not isinstance(told.get("counts"), list):
            return None
        counts = [one for one in told["counts"] if isinstance(one, int) and one >= 0]
        mean, p95, most = (format.number(told.get(what)) for what in ("mean", "p95", "max"))
        if not sum(counts) or mean is None or p95 is None or most is None:
            return None
        return counts, mean, int(p95), int(most)


def tell(
    name: str, events: Sequence[RunEvent], summary: dict[str, Any] | None = None, job: Job | None = None
) -> RunRecord:
    return RunRecord(name, account(events), summary or {}, job)


def read(folder: Path) -> RunRecord:
    """A run's folder; refused if there is no run in it, or none that has begun."""
    if not folder.is_dir():
        raise Invalid(f"there is no folder {folder}: give the folder of a run (`shoal train` says where it is)")
    events = folder / "events.jsonl"
    if not events.is_file():
        if (folder / "job.toml").is_file():
            raise Invalid(f"{folder} has no events.jsonl: its run has not begun; look again when it has")
        raise Invalid(f"{folder} is no run: it has no events.jsonl; give a folder that `shoal train` has written")
    try:
        found, damaged = read_legible(events)
    except OSError as error:
        raise Invalid(f"cannot read {events}: {error.strerror}: make that possible, or copy it elsewhere") from None
    told = RunRecord(folder.resolve().name, account(found), folder=folder)
    if told.run.started is None:
        raise Invalid(f"{events} has no beginning of a run that can be read: give another folder")
    if damaged:
        lines = format.many(damaged, "line")
        told.problems.append(f"{lines} of events.jsonl cannot be read and {'is' if damaged == 1 else 'are'} left out.")
    _read_summary(told, folder / "summary.json")
    _read_job(told, folder / "job.toml")
    return told


def _read_summary(told: RunRecord, path: Path) -> None:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        told.problems.append(
            "There is no summary.json: the run goes on, or was cut short; figures are up to its last event."
        )
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        told.problems.append(
            f"summary.json cannot be read ({format.clean(str(error))}): figures are from the events alone."
        )
    else:
        told.summary = found if isinstance(found, dict) else {}


def _read_job(told: RunRecord, path: Path) -> None:
    from shoal.job import Job

    try:
        told.job = Job.load(path)
    except Invalid as error:
        told.problems.append(f"Its settings are not shown: {format.clean(str(error))}.")


_NAMES = (("data", "source"), ("model", "kind"), ("model", "net"))  # shown under their own names


def unlike(job: Job) -> dict[str, Any]:
    """Settings that differ from the defaults, and always data, model and strategy."""
    from shoal.job import Job

    mine: dict[str, Any] = msgspec.to_builtins(job)
    plain = Job.of({"strategy": job.strategy.name})  # its defaults
    usual: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(plain, model=type(job.model)()))
    found: dict[str, Any] = {"data": job.data.source, "model": job.model.told, "strategy": job.strategy.name}
    for name, value in mine.items():
        if not isinstance(value, dict):
            found |= {name: value} if value != usual[name] else {}
            continue
        for inner, one in value.items():
            if one != usual[name].get(inner) and (name, inner) not in _NAMES:
                found[f"{name}.{inner}"] = one
    return found


def named(runs: Sequence[RunRecord]) -> None:
    """Renames runs of one name by the folders they are in, or by numbers."""
    names = [one.name for one in runs]
    for one in runs:
        if names.count(one.name) > 1 and one.folder is not None:
            one.name = f"{one.folder.resolve().parent.name}/{one.name}"
    names = [one.name for one in runs]
    for at, one in enumerate(runs):
        if names.count(one.name) > 1:
            one.name = f"{one.name} ({at + 1})"
