"""The result of a drill: figures, a verdict, tables, a picture; and its state while it runs."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shoal.chaos.audit import PushAudit
from shoal.chaos.plan import COORDINATOR, PLANNED, role_of
from shoal.chaos.recovery import Recovery
from shoal.job import Job
from shoal.views import axes as draw
from shoal.views import format
from shoal.views.axes import INK, LOST, PALE, SERIES, TEST, TRAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(slots=True)
class ChaosState:
    job: Job
    seed: int | None  # None: the clean run
    seconds: float = 0.0
    share: float = 0.0  # of the work that is done
    members: dict[str, str] = field(default_factory=dict)  # how each of them is
    faults: int = 0
    recoveries: int = 0
    acknowledged: int = 0
    loss: float | None = None
    clean_loss: float | None = None
    throughput: list[tuple[float, float]] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    log: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=64))


class ChaosListener:
    """Receives the progress of a drill; this one ignores it."""

    def board(self, board: ChaosState) -> None: ...  # the state has changed

    def said(self, seconds: float, style: str, text: str) -> None: ...  # fault, heal, news or bad

    def note(self, text: str) -> None: ...  # on the work before or after the run


STEPS = ("detected", "promoted", "full", "back")
CLOSE = 0.01  # a loss within so much of the clean one, relative to it, is the same


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a drill: first the audit, then its conditions."""

    sent: int
    acknowledged: int
    counted: int
    lost: int
    doubled: int
    faults: int
    recoveries: int
    loss: float | None
    clean_loss: float | None
    seconds: float
    clean_seconds: float
    ok: bool
    why: str  # the run ended
    wrong: list[str]  # problems
    seed: int
    data: str
    strategy: str
    workers: int
    servers: int
    copies: int
    steps: int
    rollbacks: int
    changes: int = 0  # servers that joined, or were asked to go
    beyond: bool = False  # faults could exceed what the copies tolerate
    model: str = ""  # sync: "same" bits as the clean run, or "other"; empty: unknown
    newer: int = 0  # slots that were reassigned and read weights of which some were a step newer
    voids: int = 0  # void slots
    healed: list[Recovery]
    throughput: list[tuple[float, float]]  # seconds, rows a second
    losses: list[tuple[float, float]]  # seconds, test loss

    @property
    def verdict(self) -> str:
        if self.lost or self.doubled:
            return f"{self.lost:,} lost, {self.doubled:,} doubled of {self.acknowledged:,} acknowledged pushes"
        changes = (
            f", and servers joined or were asked to leave {format.many(self.changes, 'time')}" if self.changes else ""
        )
        through = f"through {format.many(self.faults, 'fault')}{changes}"
        return f"0 lost, 0 doubled: all {self.acknowledged:,} acknowledged pushes were counted once, {through}"


def judged(account: PushAudit, failed: str, rollbacks: int, beyond: bool) -> list[str]:
    wrong = list(account.wrong)
    if failed:
        wrong.append(f"the run failed: {failed}")
    if rollbacks and not beyond:
        wrong.append(f"rolled back to a checkpoint {format.many(rollbacks, 'time')}, although a copy was always left")
    return wrong


def shown(report: ChaosReport) -> Group:
    sign, style = ("✔", "bold green") if report.ok else ("✘", "bold red")
    verdict = Text(f"{sign} {report.verdict}", style)
    if report.ok and report.beyond and not report.rollbacks:
        bear = "1 copy" if report.copies == 1 else f"{report.copies} copies"
        verdict = Text(f"! no fault exceeded what {bear} can tolerate; {report.verdict}", "bold yellow")
    elif report.ok and not report.faults:
        verdict = Text(f"! no fault was injected, give it longer (--seconds): {report.verdict}", "bold yellow")
    rest = [Text(f"  {one}", "red") for one in report.wrong]
    return Group(Text(""), _times(report), _figures(report), Text(""), verdict, *rest)


def _figures(report: ChaosReport) -> Table:
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    found = f"{report.sent:,} sent, {report.acknowledged:,} acknowledged, {report.counted:,} found on the servers"
    if (unheard := report.counted - report.acknowledged + report.lost) > 0:
        found += f" ({unheard:,} of them counted, but their sender was killed before it was told)"
    table.add_row("pushes", found)
    back = "never: no last copy was killed this time; give it longer, or another --seed"
    if report.rollbacks:
        back = f"to a checkpoint, {format.many(report.rollbacks, 'time')}: the work since then was done again"
    if report.rollbacks or report.beyond:
        table.add_row("rolled back", back)
    table.add_row("loss", _losses(report))
    ratio = report.seconds / report.clean_seconds if report.clean_seconds else 0.0
    table.add_row("time", f"{report.seconds:.1f} s, clean run {report.clean_seconds:.1f} s ({ratio:.2f} times as long)")
    table.add_row("ended", format.clean(report.why))
    return table


def _losses(report: ChaosReport) -> str:
    if report.loss is None or report.clean_loss is None:
        return f"{format.loss(report.loss)}, clean run {format.loss(report.clean_loss)}"
    if report.model == "same":
        return f"{format.loss(report.loss)}, and the model is the clean run's bit for bit"
    change = report.loss / report.clean_loss - 1 if report.clean_loss else 0.0
    same = "the same within noise" if abs(change) <= CLOSE else "better" if change < 0 else "worse"
    found = f"{format.loss(report.loss)}, clean run {format.loss(report.clean_loss)} ({change:+.2%}: {same})"
    if report.model == "other" and (report.newer or report.voids):  # the documented exceptions
        newer = f"{format.many(report.newer, 'slot')} reassigned read newer weights" if report.newer else ""
        void = f"{format.many(report.voids, 'slot')} could not be computed" if report.voids else ""
        found += f"; another model, since {' and '.join(filter(None, (newer, void)))}"
    return found


def _times(report: ChaosReport) -> Table:
    """A row for each kind of fault: how many, how many healed, median and longest times."""
    title = "faults, and the seconds until ... (middle, longest)"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("fault", no_wrap=True)
    for name in ("times", "healed", "out of the view", "pushes counted", "full copies", "back"):
        table.add_column(name, justify="right", no_wrap=True)
    kinds = sorted({(one.fault.role, one.fault.kind) for one in report.healed})
    for role, kind in kinds:
        those = [one for one in report.healed if (one.fault.role, one.fault.kind) == (role, kind)]
        well = sum(one.well is not None for one in those)
        steps = [[seconds for one in those if (seconds := getattr(one, step)) is not None] for step in STEPS]
        cells = [f"{median(seconds):.1f}  {max(seconds):.1f}" if seconds else "" for seconds in steps]
        table.add_row(f"{kind} {role}", f"{len(those)}", f"{well}", *cells)
    if not kinds:
        table.add_row("none", "0", "0", *[""] * len(STEPS))
    return table


ROLES = (COORDINATOR, "server", "worker")
FAULTS: dict[str, tuple[Any, str, str]] = {  # marker, colour, words of the legend
    "kill": ("X", LOST, "kill -9"),
    "pause": ("|", SERIES[4], "pause"),
    "cut": ((2, 0, 315), SERIES[4], "cut off"),
    "join": (">", INK, "join, planned"),
    "drain": ("<", INK, "leave, planned"),
}


def timeline(report: ChaosReport, path: str | os.PathLike[str]) -> Path:
    """Faults and recoveries under throughput and loss, as a picture; needs matplotlib."""
    figure = draw.canvas(5.8, 10.0)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_throughput(top, report)
    _draw_faults(bottom, report)
    draw.headline(figure, report.verdict, size=11)
    draw.save(figure, Path(path))
    return Path(path)


def _draw_throughput(axes: Axes, report: ChaosReport) -> None:
    axes.plot(*draw.columns(report.throughput), color=TRAIN, linewidth=1.2)
    axes.set_ylabel("rows a second", color=TRAIN)
    axes.set_ylim(bottom=0)
    draw.numbers(axes.yaxis)
    draw.tidy(axes)
    for one in report.healed:
        _, color, _ = FAULTS[one.fault.kind]
        axes.axvline(one.at, color=color, linewidth=0.7, linestyle=":" if one.fault.kind in PLANNED else "-", alpha=0.6)
    other = axes.twinx()
    other.plot(*draw.columns(report.losses), color=TEST, marker=".", linewidth=1.0)
    other.set_ylabel("test loss", color=TEST)
    other.spines["top"].set_visible(False)
    if report.clean_loss is not None:
        draw.reference(other, report.clean_loss, f"clean run {format.loss(report.clean_loss)}", ":")


def _draw_faults(axes: Axes, report: ChaosReport) -> None:
    """A bar from each fault until it had healed; one that the end of the run cut short is pale."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = sorted({one.fault.name for one in report.healed}, key=lambda name: (ROLES.index(role_of(name)), name))
    end = max([report.seconds, *(one.at for one in report.healed)])
    for one in report.healed:
        row, (marker, color, _) = names.index(one.fault.name), FAULTS[one.fault.kind]
        length = one.well if one.well is not None else max(0.0, end - one.at)
        axes.barh(row, length, left=one.at, height=0.5, color=color, alpha=0.35 if one.well is not None else 0.12)
        axes.plot([one.at], [row], linestyle="none", marker=marker, color=color, markersize=7)
        if one.promoted is not None:
            axes.plot([one.at + one.promoted], [row], marker=".", color=TRAIN, markersize=6)
    draw.row_names(axes, names, size=8)
    axes.set_xlabel("seconds since training began")
    draw.tidy(axes, grid="x")
    handles: list[Line2D | Patch] = [
        Line2D([], [], linestyle="none", marker=marker, color=color, label=text)
        for kind, (marker, color, text) in FAULTS.items()
        if any(one.fault.kind == kind for one in report.healed)
    ]
    if handles:
        handles.append(Patch(color=PALE, label="until healed"))
        handles.append(Line2D([], [], linestyle="none", marker=".", color=TRAIN, label="pushes count again"))
        options = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "frameon": False, "fontsize": 8}
        draw.legend(axes, handles, ncols=len(handles), **options)
    else:
        draw.nothing(axes, "nothing was broken")
