"""A sweep while it goes on: a board on a terminal, a line for each run anywhere else.

shoal sweep · delay · 54 runs · 2 at a time
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌  31 of 54   12 min 3 s   about 9 min left
 ● max_delay 4, seed 1        pass 2.3   test loss 0.4421   8.1 s
 ✔ max_delay 2, seed 1        test loss 0.4398   12 s
 ✘ max_delay 1, seed 1        given up after 600 s
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from shoal.events import RunEvent
from shoal.sweep.disk import PointResult, took
from shoal.sweep.schedule import RunningPoint, SweepListener, estimate
from shoal.sweep.study import PlannedRun, Study
from shoal.views import format
from shoal.views.terminal import LineView, LiveView, view

if TYPE_CHECKING:
    from rich.text import Text

WIDEST = 110
ENDED = 12  # of those that ended, how many are shown
TAIL = 65_536  # bytes of a run's events that are looked at


@contextmanager
def audience(study: Study, results: Sequence[PointResult], stream: TextIO | None = None) -> Iterator[SweepListener]:
    """Those who look on, by what the stream (standard error if none is given) is."""
    stream = stream or sys.stderr
    shown = view(stream)  # it knows what a terminal is
    so_far = SweepProgress(study, results)
    if isinstance(shown, LiveView):
        with SweepBoard(stream, shown._console, None) as board:
            yield SweepLive(so_far, board)
    else:
        with shown:
            assert isinstance(shown, LineView)
            yield SweepLines(so_far, shown)


class SweepProgress:
    """How far the sweep is."""

    def __init__(self, study: Study, results: Sequence[PointResult]) -> None:
        self.study, self.total = study, len(results)
        self.done = sum(one.is_done for one in results)
        self.failed = 0
        self.began = time.monotonic()
        self.took = took(results)
        self.running: list[tuple[str, float, str]] = []  # who, for how long, how far
        self.ended: deque[tuple[str, str]] = deque(maxlen=ENDED)  # a sign, and what is said
        self._beside = len(study.places())

    def end(self, result: PointResult, seconds: float) -> str:
        self.took.append(seconds)
        self.running = [one for one in self.running if one[0] != title(result.run)]
        self.done += result.is_done
        self.failed += not result.is_done
        said = f"{title(result.run)}: {ending(result)}, {format.duration(seconds)}"
        self.ended.append(("+" if result.state == "finished" else "!" if result.is_done else "x", said))
        return said

    def left(self) -> str:
        """About how long it will take."""
        seconds = estimate(self.took, self.total - self.done - self.failed, self._beside)
        return "" if seconds is None or seconds <= 0 else f"about {format.duration(seconds)} left"


class SweepLines(SweepListener):
    """Lines."""

    def __init__(self, so_far: SweepProgress, out: LineView) -> None:
        self._so_far, self._out = so_far, out
        if so_far.done:
            out.write([f"{so_far.done:,} of {so_far.total:,} runs are finished already"])

    def ended(self, result: PointResult, seconds: float) -> None:
        said, so_far = self._so_far.end(result, seconds), self._so_far
        left = f"; {so_far.left()}" if so_far.left() else ""
        self._out.write([f"{so_far.done + so_far.failed:>4,} of {so_far.total:,}  {said}{left}"])


class SweepLive(SweepListener):
    """A board."""

    def __init__(self, so_far: SweepProgress, board: SweepBoard) -> None:
        self._so_far, self._board = so_far, board
        board.show(so_far)

    def ended(self, result: PointResult, seconds: float) -> None:
        self._so_far.end(result, seconds)
        self._board.show(self._so_far)

    def goes_on(self, running: Sequence[RunningPoint], waiting: int) -> None:
        self._so_far.running = [(title(one.run), one.seconds, how_far(one.folder)) for one in running]
        self._board.show(self._so_far)


class SweepBoard(LiveView):
    """The live view, with a sweep on it instead of a run."""

    _so_far_of_all: SweepProgress | None = None

    def show(self, so_far: SweepProgress) -> None:
        with self._lock:
            self._so_far_of_all = so_far
            self._start()

    def __call__(self, event: RunEvent) -> None:
        raise AssertionError("it shows sweeps, not events")

    def _frame(self, width: int, height: int) -> list[Text]:
        return frame(self._so_far_of_all, width, height, self._plain)


def frame(so_far: SweepProgress | None, width: int, height: int, plain: bool = False) -> list[Text]:
    """At most ``height - 1`` lines of less than ``width`` columns; ``plain``: ASCII only."""
    from rich.text import Text

    if so_far is None:
        return [Text("")]
    width, budget = max(1, min(width, WIDEST) - 1), max(1, height - 1)
    dot = " | " if plain else " · "
    heads = ["shoal sweep", format.clean(so_far.study.name), format.many(so_far.total, "run")]
    lines = [Text(dot.join(heads), "bold"), _bar(so_far, width, plain)]
    sign = "*" if plain else "●"
    lines += [
        Text.assemble(
            (f" {sign} ", "cyan"),
            format.clean(who),
            ("  " + "   ".join(x for x in (far, format.duration(s)) if x), "dim"),
        )
        for who, s, far in so_far.running
    ]
    signs = {"+": ("✔", "green"), "!": ("!", "yellow"), "x": ("✘", "red")}
    room = max(0, budget - len(lines))
    for kind, said in list(so_far.ended)[-room:] if room else []:
        shown, colour = signs[kind]
        lines.append(Text.assemble((f" {kind if plain else shown} ", colour), format.clean(said)))
    for line in lines[:budget]:
        if plain:
            line.plain = line.plain.encode("ascii", "replace").decode()
        line.truncate(width, overflow="crop" if plain else "ellipsis")
        line.no_wrap = True
    return lines[:budget]


def _bar(so_far: SweepProgress, width: int, plain: bool) -> Text:
    from rich.text import Text

    failed = f", {so_far.failed} failed" if so_far.failed else ""
    spent = format.duration(time.monotonic() - so_far.began)
    said = "   ".join(x for x in (f"{so_far.done} of {so_far.total}{failed}", spent, so_far.left()) if x)
    cells = max(0, width - len(said) - 2)
    done = round(cells * so_far.done / max(1, so_far.total))
    full, empty = ("#", "-") if plain else ("━", "╌")
    return Text.assemble((full * done, "green"), (empty * (cells - done), "dim"), "  ", said)


def title(run: PlannedRun) -> str:
    return f"{run.point.title}, seed {run.seed}"


def ending(result: PointResult) -> str:
    """How a run ended."""
    if result.state == "finished":
        return f"test loss {format.loss(result.summary.get('test_loss'))}"
    return f"{result.state}: {format.clean(result.reason)}"


def how_far(folder: Path) -> str:
    """A run's last words on where it is, from the end of its events; nothing if it has said none yet."""
    try:
        with open(folder / "events.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return ""
    far = loss = ""
    for line in reversed(lines):
        try:
            told = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            continue  # the first one, cut
        if isinstance(told, dict) and isinstance(told.get("passes"), float | int):
            far = far or f"epoch {format.epochs(told['passes'])}"
            if told.get("event") == "evaluated":
                loss = f"test loss {format.loss(told.get('test_loss'))}"
                break
    return "   ".join(x for x in (far, loss) if x)
