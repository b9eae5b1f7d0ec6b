"""A run as its folder records it: events, the figures in them, summary and settings.

The run may still go on, or its files may be damaged: missing values are None or empty, and
impossible ones (a span of negative length, a loss that is not a number) are dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from shoal import events as e
from shoal.errors import Invalid
from shoal.nodes.time_accounting import KINDS
from shoal.views import format
from shoal.views.event_line import News
from shoal.views.members import MembershipHistory, is_over

if TYPE_CHECKING:
    from shoal.job import Job

OF_WORKERS = KINDS[:4]
JITTER = 0.004  # seconds between spans: shorter gaps are message latency
BACK = 0.9  # of the rows/s before a fault: it has recovered

Happened = News | e.Saved
Span = tuple[str, float, float]  # kind, from, to


@dataclass(slots=True)
class NodeMetrics:
    name: str
    role: str = ""
    spans: list[Span] = field(default_factory=list)  # in order, without overlap; maybe not all
    spent: dict[str, float] = field(default_factory=dict)  # seconds by kind, of the whole run
    slots: int = 0
    here: list[tuple[float, float]] = field(default_factory=list)  # from, to; inf: to the end
    exact: bool = False  # spent is reported, not added up from spans

    @property
    def shares(self) -> dict[str, float]:
        return _shares(self.spent, KINDS)

    @property
    def per_slot(self) -> float | None:
        return self.spent.get("compute", 0.0) / self.slots if self.exact and self.slots else None


@dataclass(slots=True)
class RunMetrics:
    started: e.Started | None = None
    stopped: e.Stopped | None = None
    seconds: float = 0.0
    progress: list[e.Progress] = field(default_factory=list)
    evaluations: list[e.Evaluated] = field(default_factory=list)
    nodes: dict[str, NodeMetrics] = field(default_factory=dict)  # those with spans, workers first
    spent: dict[str, float] = field(default_factory=dict)  # of all workers
    happened: list[Happened] = field(default_factory=list)
    delays: list[e.Delayed] = field(default_factory=list)
    attendance: MembershipHistory = field(default_factory=MembershipHistory)
    shared: list[e.Shared] = field(default_factory=list)  # after each move of segments
    _at: list[float] = field(default_factory=list)  # seconds, rows by then
    _done: list[float] = field(default_factory=list)

    @property
    def workers(self) -> list[NodeMetrics]:
        return [node for node in self.nodes.values() if node.role == "worker"]

    @property
    def shares(self) -> dict[str, float]:
        return _shares(self.spent, OF_WORKERS)

    @property
    def computing(self) -> str:
        """The emulated time per row, if any."""
        told = self.started.emulated if self.started is not None else ""
        return told.partition(")")[0] if told.startswith("emulated compute") else ""

    @property
    def finite(self) -> list[e.Evaluated]:
        return [event for event in self.evaluations if math.isfinite(event.test_loss)]

    @property
    def best(self) -> e.Evaluated | None:
        return min(self.finite, key=lambda event: event.test_loss, default=None)

    @property
    def examples(self) -> int:
        judged = [event.examples for event in self.evaluations[-1:]]
        return max([0, *judged, *(event.examples for event in self.progress[-1:])])

    @property
    def slowest(self) -> tuple[NodeMetrics, float] | None:
        """The worker with the longest time per slot, and its ratio to the median of the others."""
        paces = sorted((pace, node.name) for node in self.workers if (pace := node.per_slot))
        if len(paces) < 2:
            return None
        others = [pace for pace, _ in paces[:-1]]
        return self.nodes[paces[-1][1]], paces[-1][0] / median(others)

    def reached(self, loss: float) -> e.Evaluated | None:
        return next((event for event in self.finite if event.test_loss <= loss), None)

    def rate(self, since: float, until: float) -> float | None:
        """Rows a second between two moments; None if one is not recorded."""
        import numpy as np

        if not self._at or not self._at[0] <= since < until <= self._at[-1]:
            return None
        before, after = np.interp([since, until], self._at, self._done).tolist()
        return float((after - before) / (until - since))

    def back_after(self, moment: float, window: float = 1.0) -> float | None:
        """Seconds until rows/s were at 90% for a second; inf: never; None: not recorded."""
        before = self.rate(max(0.0, moment - 3 * window), moment)
        if not before or moment < window:
            return None
        later = [event.seconds for event in self.progress if event.seconds >= moment]
        for at in (moment, *later):
            now = self.rate(at, at + window)
            if now is not None and now >= BACK * before:
                return at - moment
        return math.inf if self.rate(moment, moment + window) is not None else None


def account(events: Iterable[e.RunEvent]) -> RunMetrics:
    one = RunMetrics()
    for event in events:
        if not math.isfinite(event.seconds):
            continue
        one.seconds = max(one.seconds, event.seconds)
        one.attendance.take(event)
        match event:
            case e.Started():
                one.started, one.stopped = event, None
            case e.Stopped():
                one.stopped = event
                one.happened = [other for other in one.happened if not is_over(other, event)]
            case e.Progress():
                one.progress.append(event)
                _add(one.spent, event.spent)
            case e.Evaluated():
                one.evaluations.append(event)
                for name, did in event.each.items():
                    node = _node(one, name)
                    node.exact = True
                    node.slots += int(did.get("slots", 0))
                    _add(node.spent, did)
            case e.Spans():
                _node(one, event.name).spans += [(kind, at, at + length) for kind, at, length in event.spans]
            case e.Delayed():
                one.delays.append(event)
            case e.Shared():
                one.shared.append(event)
            case e.Resumed():
                one.stopped = None
                one.happened.append(event)
            case e.Joined():
                last = one.attendance.stays[-1]  # it counts from then on
                one.happened.append(replace(event, seconds=last.since) if last.name == event.name else event)
            case _:
                one.happened.append(event)
    one._at, one._done = _work(one.progress)
    for node in one.nodes.values():
        _settle(node)
        stays = [(stay.since, stay.until) for stay in one.attendance.stays if stay.name == node.name]
        node.here = stays or [(0.0, math.inf)]
    one.nodes = dict(sorted(one.nodes.items(), key=lambda item: (item[1].role != "worker", format.natural(item[0]))))
    return one


def emulation(text: str) -> str:
    """The sentence about emulation: Emulated compute (1 ms per example)."""
    text = format.clean(text)
    return f"{text[:1].upper()}{text[1:]}." if text.startswith("emulated") else f"Emulated: {text}."


def seconds_of(event: e.Evaluated) -> float:
    """The time of an evaluation: when its weights were read."""
    return event.seconds if event.read is None else event.read


def began(event: e.Gone | e.RolledBack) -> float:
    """When a fault began: a silent node was missing before it was declared dead."""
    silent = re.match(r"silent for ([\d.]+) s\b", event.why) if isinstance(event, e.Gone) else None
    return max(0.0, event.seconds - float(silent.group(1))) if silent else event.seconds


def _node(one: RunMetrics, name: str) -> NodeMetrics:
    role = "evaluator" if name.startswith("evaluator") else "worker"
    return one.nodes.setdefault(name, NodeMetrics(name, role))


def _shares(spent: dict[str, float], kinds: Sequence[str]) -> dict[str, float]:
    whole = sum(spent.values())
    return {kind: spent.get(kind, 0.0) / whole for kind in kinds} if whole else {}


def _add(total: dict[str, float], more: dict[str, float]) -> None:
    for kind, seconds in more.items():
        if kind in KINDS and math.isfinite(seconds) and seconds > 0:
            total[kind] = total.get(kind, 0.0) + seconds


def _work(progress: Sequence[e.Progress]) -> tuple[list[float], list[float]]:
    """Rows computed by each record, including repeats after a rollback."""
    at, done, last = [0.0], [0.0], 0
    for event in progress:
        if event.seconds > at[-1]:
            at.append(event.seconds)
            done.append(done[-1] + max(0, event.examples - last))
        last = event.examples
    return (at, done) if len(at) > 1 else ([], [])


def _settle(node: NodeMetrics) -> None:
    """Sort spans, and shorten later ones that overlap by message latency."""
    settled: list[Span] = []
    for kind, start, stop in sorted(node.spans, key=lambda one: one[1]):
        if kind not in KINDS or not 0 <= start <= stop < math.inf:
            continue
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


CLOCK_STOPS = ("serial", "averaging", "allreduce", "hogwild", "gossip")  # during an evaluation
NEVER_LATE = ("serial", "allreduce", "hogwild", "gossip")  # no push can be stale


@dataclass(slots=True)
class RunRecord:
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
        """CPU seconds since it was last resumed."""
        return format.number(self.summary.get("cpu_seconds"))

    @property
    def lasted(self) -> float:
        """Seconds of the span of ``cpu``."""
        elapsed = format.number(self.summary.get("elapsed_seconds")) if self.summary.get("resumed") else None
        return self.run.seconds if elapsed is None else elapsed

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
    name: str, events: Sequence[e.RunEvent], summary: dict[str, Any] | None = None, job: Job | None = None
) -> RunRecord:
    return RunRecord(name, account(events), summary or {}, job)


def read(folder: Path) -> RunRecord:
    """A run's folder; refused if there is no run in it, or none that has begun."""
    from shoal.job import Job

    if not folder.is_dir():
        raise Invalid(f"there is no folder {folder}: give the folder of a run (`shoal train` says where it is)")
    events = folder / "events.jsonl"
    if not events.is_file():
        if (folder / "job.toml").is_file():
            raise Invalid(f"{folder} has no events.jsonl: its run has not begun; look again when it has")
        raise Invalid(f"{folder} is no run: it has no events.jsonl; give a folder that `shoal train` has written")
    try:
        found, damaged = e.read_legible(events)
    except OSError as error:
        raise Invalid(f"cannot read {events}: {error.strerror}: make that possible, or copy it elsewhere") from None
    told = RunRecord(folder.resolve().name, account(found), folder=folder)
    if told.run.started is None:
        raise Invalid(f"{events} has no beginning of a run that can be read: give another folder")
    if damaged:
        lines = format.many(damaged, "line")
        told.problems.append(f"{lines} of events.jsonl cannot be read and {'is' if damaged == 1 else 'are'} left out.")
    try:
        summary = msgspec.json.decode((folder / "summary.json").read_bytes())
        told.summary = summary if isinstance(summary, dict) else {}
    except FileNotFoundError:
        why = "the run goes on, or was cut short; figures are up to its last event"
        told.problems.append(f"There is no summary.json: {why}.")
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = format.clean(str(error))
        told.problems.append(f"summary.json cannot be read ({why}): figures are from the events alone.")
    try:
        told.job = Job.load(folder / "job.toml")
    except Invalid as error:
        told.problems.append(f"Its settings are not shown: {format.clean(str(error))}.")
    return told


_NAMES = (("data", "source"), ("model", "kind"), ("model", "net"))  # shown under their own names


def unlike(job: Job) -> dict[str, Any]:
    """Settings that differ from the defaults, and always data, model and strategy."""
    from shoal.job import Job

    mine: dict[str, Any] = msgspec.to_builtins(job)
    plain = Job.of({"strategy": job.strategy.name})  # its defaults
    usual: dict[str, Any] = msgspec.to_builtins(replace(plain, model=type(job.model)()))
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
