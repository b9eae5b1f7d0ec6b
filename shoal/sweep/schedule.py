"""Runs a sweep in parallel: each run has its own process and cores.

A run that fails is reported, and the others go on. Ending the sweep ends all runs, by closing the
pipe of their orders; that also happens when this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.data.datasets import check_source
from shoal.errors import Invalid
from shoal.files import Lock
from shoal.sweep.child import GRACE, SweepOrders
from shoal.sweep.disk import FAILED, LOG, PointResult, Sweep, arrange, kept, look, make_way, write_study
from shoal.sweep.study import PlannedRun, Study

LOOK = 0.5  # seconds between checks of the runs
REASON_CHARS = 500


class SweepListener:
    """Receives the progress of a sweep; this one ignores it."""

    def ended(self, result: PointResult, seconds: float) -> None: ...

    def goes_on(self, running: Sequence[RunningPoint]) -> None: ...


@dataclass(slots=True, eq=False)
class RunningPoint:
    run: PlannedRun
    place: list[int]
    folder: Path
    process: subprocess.Popen[bytes]
    handle: int  # becomes readable when the process ends
    began: float = field(default_factory=time.monotonic)
    given_up: str = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class SweepSchedule:
    def __init__(self, out: Path, places: Sequence[list[int]], timeout: float, audience: SweepListener) -> None:
        self._out, self._timeout, self._audience = out, timeout, audience
        self._free = deque(places)
        self._cores = len(places[0])
        self._running: list[RunningPoint] = []

    def run(self, todo: Iterable[PlannedRun]) -> None:
        queue = deque(todo)
        try:
            while queue or self._running:
                while queue and self._free:
                    self._begin(queue.popleft())
                self._audience.goes_on(self._running)
                self._wait()
                for one in [one for one in self._running if one.process.poll() is not None]:
                    self._end(one)
        finally:
            self._end_all()

    def _begin(self, run: PlannedRun) -> None:
        folder = self._out / "runs" / run.name
        make_way(folder, self._out)
        folder.mkdir(parents=True)
        place = self._free.popleft()
        with open(folder / LOG, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal.sweep.child"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the sweep, which ends its runs in order
            )
        one = RunningPoint(run, place, folder, process, os.pidfd_open(process.pid))
        self._running.append(one)
        orders = msgspec.json.encode(SweepOrders(run.job.toml(), str(folder), place))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its log says why
            process.stdin.write(orders + b"\n")
            process.stdin.flush()

    def _wait(self) -> None:
        """Wait until a run ends, at most for a moment."""
        select.select([one.handle for one in self._running], [], [], LOOK)
        for one in self._running:
            if one.seconds > self._timeout and not one.given_up:
                limit = f"{self._timeout:g} s"
                one.given_up = f"given up after {limit}: raise timeout in the study, or make its runs shorter"
                one.process.send_signal(signal.SIGTERM)
            elif one.seconds > self._timeout + GRACE:
                one.process.kill()

    def _end(self, one: RunningPoint) -> None:
        self._forget(one)
        result = look(one.run, self._out, self._cores)
        if not result.is_done:
            reason = one.given_up or _reason(one)
            with contextlib.suppress(OSError):  # a full disk: the next sweep tries again anyway
                (one.folder / FAILED).write_text(f"{reason}\n")
            result = PointResult(one.run, "failed", one.folder, reason)
        self._audience.ended(result, one.seconds)

    def _forget(self, one: RunningPoint) -> None:
        self._running.remove(one)
        self._free.append(one.place)
        os.close(one.handle)
        with contextlib.suppress(OSError):
            if one.process.stdin is not None:
                one.process.stdin.close()

    def _end_all(self) -> None:
        """End all runs, in order if possible."""
        for one in self._running:
            with contextlib.suppress(OSError):
                one.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for one in list(self._running):
            try:
                one.process.wait(max(0.0, deadline - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):  # asked twice
                deadline = 0.0
                one.process.kill()
                one.process.wait()
            self._forget(one)


def _reason(one: RunningPoint) -> str:
    """Why it failed: its last output, or its exit status."""
    code = one.process.returncode
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    with contextlib.suppress(OSError):
        lines = (one.folder / LOG).read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1].removeprefix("Error: ")[:REASON_CHARS]
    return f"ended with exit code {code} and said nothing"


def estimate(took: Sequence[float], left: int, beside: int) -> float | None:
    """Seconds left, if runs take as long as those done; None if none is done."""
    if not took or not left:
        return None if left else 0.0
    return sum(took) / len(took) * -(-left // beside)


def check_here(study: Study) -> None:
    study.places()
    for run in study.runs:
        try:
            check_source(run.job.data)
            run.job.strategy.check_here(run.job)
        except Invalid as error:
            raise Invalid(f"[{'serial' if run.point.serial else 'grid'}] {run.point.title}: {error}") from None


def stands(study: Study, out: Path) -> list[PointResult]:
    """The state of each run; changes nothing."""
    cores = len(study.places()[0])
    there = kept(study, out, cores)
    found = []
    for run in study.runs:
        result = look(run, out, cores)
        if run.name in there and there[run.name] != result.folder:  # it still has another name
            result = PointResult(run, "finished", there[run.name])
        found.append(result)
    return found


def run_left(study: Study, out: Path, audience: SweepListener | None = None) -> Sweep:
    """Run the unfinished runs. A failed run stops no other; the next call continues."""
    check_here(study)
    places = study.places()
    if (out / "job.toml").is_file():
        raise Invalid(f"{out} is the folder of a run: choose another one for the sweep (--out)")
    try:  # before hours are spent
        (out / "runs").mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise Invalid(f"cannot write to {out}: {error.strerror}: choose another folder (--out)") from None
    lock = Lock(out, out, "sweep")
    try:
        arrange(study, out, len(places[0]))
        write_study(study, out)
        todo = [run for run in study.runs if not look(run, out, len(places[0])).is_done]
        SweepSchedule(out, places, study.timeout, audience or SweepListener()).run(todo)
    finally:
        lock.release()
    return Sweep(study, [look(run, out, len(places[0])) for run in study.runs], out)
