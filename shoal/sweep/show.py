"""Shows a sweep live: a board on a terminal, elsewhere a line for each run.

shoal sweep · delay · 54 runs · 2 at a time
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌  31 of 54   12 min 3 s   about 9 min left
 ● max_delay 4, seed 1        epoch 2.3   test loss 0.4421   8.1 s
 ✔ max_delay 2, seed 1        test loss 0.4398   12 s
 ✘ max_delay 1, seed 1        given up after 600 s
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import msgspec
from rich.text import Text

from shoal.sweep.disk import PointResult, took
from shoal.sweep.schedule import RunningPoint, SweepListener, estimate
from shoal.sweep.study import PlannedRun, Study
from shoal.views import board, format
from shoal.views.board import Board
from shoal.views.lines import LineView

ENDED = 100  # finished runs that are shown
TAIL = 65_536  # bytes that are read of a run's events
SIGNS = {"+": ("✔", "green"), "!": ("!", "yellow"), "x": ("✘", "red")}


@contextmanager
def audience(study: Study, results: Sequence[PointResult], stream: TextIO | None = None) -> Iterator[SweepProgress]:
    """A live board where the stream (standard error if none is given) is a terminal, else lines."""
    stream, progress = stream or sys.stderr, SweepProgress(study, results)
    with Board.on(stream, progress.draw) or LineView(stream) as screen:
        if isinstance(screen, Board):
            screen.start()
        else:
            progress.lines = screen
            if progress.done:
                screen.write([f"{progress.done:,} of {progress.total:,} runs are finished already"])
        yield progress


class SweepProgress(SweepListener):
    """The progress of a sweep, drawn on a board or written as a line for each run."""

    def __init__(self, study: Study, results: Sequence[PointResult]) -> None:
        self.study, self.total = study, len(results)
        self.done = sum(one.is_done for one in results)
        self.failed = 0
        self.began = time.monotonic()
        self.took = took(results)
        self.running: list[tuple[str, float, str]] = []  # run, seconds, progress
        self.finished: deque[tuple[str, str]] = deque(maxlen=ENDED)  # a sign and a text
        self.lines: LineView | None = None
        self._lock = threading.Lock()
        self._beside = len(study.places())

    def ended(self, result: PointResult, seconds: float) -> None:
        text = f"{title(result.run)}: {ending(result)}, {format.duration(seconds)}"
        with self._lock:
            self.took.append(seconds)
            self.running = [one for one in self.running if one[0] != title(result.run)]
            self.done += result.is_done
            self.failed += not result.is_done
            self.finished.append(("+" if result.state == "finished" else "!" if result.is_done else "x", text))
        if self.lines is not None:
            left = f"; {self.left()}" if self.left() else ""
            self.lines.write([f"{self.done + self.failed:>4,} of {self.total:,}  {text}{left}"])

    def goes_on(self, running: Sequence[RunningPoint]) -> None:
        if self.lines is None:
            known = [(title(one.run), one.seconds, how_far(one.folder)) for one in running]
            with self._lock:
                self.running = known

    def left(self) -> str:
        seconds = estimate(self.took, self.total - self.done - self.failed, self._beside)
        return "" if seconds is None or seconds <= 0 else f"about {format.duration(seconds)} left"

    def draw(self, width: int, height: int, plain: bool) -> list[Text]:
        with self._lock:
            return frame(self, width, height, plain)


def frame(progress: SweepProgress, width: int, height: int, plain: bool = False) -> list[Text]:
    """At most ``height - 1`` lines of less than ``width`` columns; ``plain``: ASCII only."""
    across, budget = max(1, width - 1), max(1, height - 1)
    heads = ["shoal sweep", format.clean(progress.study.name), format.many(progress.total, "run")]
    failed = f", {progress.failed} failed" if progress.failed else ""
    spent = format.duration(time.monotonic() - progress.began)
    label = "   ".join(filter(None, (f"{progress.done} of {progress.total}{failed}", spent, progress.left())))
    lines = [
        Text((" | " if plain else " · ").join(heads), "bold"),
        board.bar(progress.done / max(1, progress.total), label, across, plain),
    ]
    running = []
    for who, seconds, far in progress.running:
        row = Text.assemble((" * " if plain else " ● ", "cyan"), format.clean(who))
        running.append(row.append("  " + "   ".join(filter(None, (far, format.duration(seconds)))), "dim"))
    lines += board.first_of(running, max(1, budget // 2), "runs")
    room = max(0, budget - len(lines))
    for kind, text in list(progress.finished)[-room:] if room else []:
        shown, colour = SIGNS[kind]
        lines.append(Text.assemble((f" {kind if plain else shown} ", colour), format.clean(text)))
    return board.fit(lines, width, height, plain)


def title(run: PlannedRun) -> str:
    return f"{run.point.title}, seed {run.seed}"


def ending(result: PointResult) -> str:
    if result.state == "finished":
        return f"test loss {format.loss(result.summary.get('test_loss'))}"
    return f"{result.state}: {format.clean(result.reason)}"


def how_far(folder: Path) -> str:
    """A run's latest progress, from the end of its events; empty if there is none."""
    try:
        with open(folder / "events.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return ""
    far = loss = ""
    for line in reversed(lines):
        try:
            event = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            continue  # the first line is incomplete
        if isinstance(event, dict) and isinstance(event.get("passes"), float | int):
            far = far or f"epoch {format.epochs(event['passes'])}"
            if event.get("event") == "evaluated":
                loss = f"test loss {format.loss(event.get('test_loss'))}"
                break
    return "   ".join(filter(None, (far, loss)))
