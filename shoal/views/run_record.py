"""A run as its folder tells it: events, figures, settings; and what of that is missing or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import Invalid
from shoal.events import RunEvent, read_legible
from shoal.job import Job
from shoal.views import format
from shoal.views.run_metrics import RunMetrics, account

STILL = ("serial", "averaging", "allreduce", "hogwild", "gossip")  # their clock stands while a model is judged
NEVER_LATE = ("serial", "allreduce", "hogwild", "gossip")  # none is late, or nothing counts what came between


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
        """Rows a second, evaluations at the very end aside."""
        rate = number(self.summary.get("examples_per_second"))
        if rate:
            return rate
        last = self.run.progress[-1] if self.run.progress else None
        return last.examples / last.seconds if last and last.seconds > 0 else None

    @property
    def cpu(self) -> float | None:
        """Seconds of computing by all its processes; None if it did not say."""
        return number(self.summary.get("cpu_seconds"))

    @property
    def staleness(self) -> tuple[list[int], float, int, int] | None:
        """Pushes by how many others came between; mean, 95th percentile, highest."""
        told = self.summary.get("staleness") if self.strategy not in NEVER_LATE else None
        if not isinstance(told, dict) or not isinstance(told.get("counts"), list):
            return None
        counts = [one for one in told["counts"] if isinstance(one, int) and one >= 0]
        mean, p95, most = (number(told.get(what)) for what in ("mean", "p95", "max"))
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


def number(value: object) -> float | None:
    """A figure of a summary, if it is one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


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
    try:
        told.job = Job.load(path)
    except Invalid as error:
        told.problems.append(f"Its settings are not shown: {format.clean(str(error))}.")


_NAMES = (("data", "source"), ("model", "kind"), ("model", "net"))  # told by their own names


def unlike(job: Job) -> dict[str, Any]:
    """Settings that are not the defaults, by their names in a job file; data and strategy are always told."""
    mine: dict[str, Any] = msgspec.to_builtins(job)
    plain = Job.of({"strategy": job.strategy.name})  # with the rule and the stop rules that go with it
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
    """Runs of one name are told apart by the folders they are in, or by numbers."""
    names = [one.name for one in runs]
    for one in runs:
        if names.count(one.name) > 1 and one.folder is not None:
            one.name = f"{one.folder.resolve().parent.name}/{one.name}"
    names = [one.name for one in runs]
    for at, one in enumerate(runs):
        if names.count(one.name) > 1:
            one.name = f"{one.name} ({at + 1})"
