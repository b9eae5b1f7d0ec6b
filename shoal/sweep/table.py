"""The figures of a sweep in rows: printed, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.files import replace_file
from shoal.sweep.figures import PointFigures, RunFigures, Spread, StudyFigures
from shoal.sweep.findings import active_table, all_at_work, paragraphs
from shoal.views import format
from shoal.views.page import TableSection, compact

if TYPE_CHECKING:
    from rich.console import RenderableType

Cell = Callable[[PointFigures], str]
LEAST = (
    "staleness (p95)", "rows to target", "per row x serial", "rows/s x serial", "waiting", "CPU seconds", "rows/s",
    "seconds", "distance", "worst node", "test loss", "x serial, same rows", "accuracy",
)  # fmt: skip


def points_table(of: StudyFigures, serial: bool = False, spread: bool = True) -> TableSection:
    """One row for each point, without empty columns; ``spread``: with lowest and highest."""
    points = of.serial if serial else of.points
    axes = of.sweep.study.serial_axes if serial else of.sweep.study.axes
    columns: list[tuple[str, Cell]] = [(axis.short, _choice(axis.name)) for axis in axes]
    if of.has_target:
        columns += [
            ("reached", _reached),
            ("seconds to target", lambda one: _spread(one.time, format.exact_seconds, spread)),
            ("rows to target", lambda one: _middle(one.rows, "{:,.0f}".format)),
        ]
    elif not all(one.complete for one in points):
        columns += [("done", lambda one: f"{one.done} of {len(one.runs)}")]
    columns += [
        ("test loss", lambda one: _spread(one.last_loss, format.loss, spread)),
        ("accuracy", lambda one: _spread(one.accuracy, lambda share: f"{share:.4f}", spread)),
        ("worst node", lambda one: _middle(one.worst_loss, format.loss)),
        ("distance", lambda one: _middle(one.distance, lambda far: f"{far:.2g}")),
        ("rows/s", lambda one: _middle(one.rows_per_second, lambda rate: f"{rate:,.0f}")),
        ("seconds", lambda one: _middle(one.seconds if of.same_work else None, format.exact_seconds)),
        ("x serial, same rows", lambda one: _middle(one.sooner, _times)),
        ("CPU seconds", lambda one: _middle(one.cpu, format.exact_seconds)),
        ("waiting", lambda one: _middle(one.waiting, format.share)),
        ("staleness (p95)", _stale),
        ("speedup", lambda one: _spread(one.speedup, _times, spread)),
        ("rows/s x serial", lambda one: _middle(one.hardware, _times)),
        ("per row x serial", lambda one: _middle(one.statistical, _times)),
    ]
    best = of.best_serial if serial else of.best
    tied = [] if serial else of.tied
    columns += [("", lambda one: "best" if one is best else "tied" if any(one is other for other in tied) else "")]
    cells = [[cell(one) for _, cell in columns] for one in points]
    known = [number for number in range(len(columns)) if any(row[number] not in ("", "-") for row in cells)]
    heads = [columns[number][0] for number in known]
    return TableSection(heads, [[row[number] for number in known] for row in cells], "serial runs" if serial else "")


def runs_table(of: StudyFigures) -> TableSection:
    """One row for each run; common values are in the caption."""
    columns: list[tuple[str, Callable[[RunFigures], float | None], Callable[[float], str]]] = [
        ("seconds to target", lambda run: run.time, format.exact_seconds),
        ("rows to target", lambda run: run.rows, "{:,.0f}".format),
        ("test loss", lambda run: run.last_loss, format.loss),
        ("best", lambda run: run.best_loss, format.loss),
        ("accuracy", lambda run: run.accuracy, "{:.4f}".format),
        ("seconds", lambda run: run.computing, format.exact_seconds),
        ("CPU seconds", lambda run: run.cpu, format.exact_seconds),
        ("rows/s", lambda run: run.rows_per_second, "{:,.0f}".format),
        ("waiting", lambda run: run.waiting, format.share),
        ("MB moved", lambda run: None if run.bytes is None else run.bytes / 1e6, "{:,.1f}".format),
    ]
    rows = []
    for run in [run for point in [*of.serial, *of.points] for run in point.runs]:
        cells = ["-" if (value := figure(run)) is None else text(value) for _, figure, text in columns]
        rows.append([run.result.run.point.title, str(run.result.run.seed), run.result.state, *cells])
    return compact(TableSection(["point", "seed", "state", *(head for head, _, _ in columns)], rows))


def printed(of: StudyFigures, width: int) -> RenderableType:
    """The final page for a terminal of this width."""
    from rich.console import Group
    from rich.text import Text

    words = ("", *_worded(of))
    tables = [_fitting(of, serial, width) for serial in [True] * bool(of.serial) + [False] * bool(of.points)]
    parts = [_rich(table, table.caption, words) for table in tables]
    there = active_table(of)
    if there is not None and not all_at_work(of):
        parts.append(_rich(there, "workers present at each loss"))
    for paragraph in paragraphs(of):
        parts += [Text(paragraph), Text("")]
    return Group(*parts)


def _rich(table: TableSection, title: str, words: Sequence[str] = ()) -> RenderableType:
    """For a terminal; columns of ``words`` are aligned to the left, the best row is bold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for head in table.heads:
        shown.add_column(head.replace(" ", "\n"), justify="left" if head in words else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row), style="bold" if row[-1] == "best" else None)
    return shown


def _fitting(of: StudyFigures, serial: bool, width: int) -> TableSection:
    """A table that fits a terminal: without spreads, then without the least important columns."""
    table = points_table(of, serial)
    if _width(table) > width:
        table = points_table(of, serial, spread=False)
    for head in LEAST:
        if _width(table) > width and head in table.heads:
            at = table.heads.index(head)
            heads, *rows = ([*row[:at], *row[at + 1 :]] for row in (table.heads, *table.rows))
            table = TableSection(heads, rows, table.caption)
    return table


def _width(table: TableSection) -> int:
    """Columns of a terminal."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.heads)
    heads = [max(map(len, head.split(" "))) for head in table.heads]
    return 2 + sum(3 + max([head, *map(len, cells)]) for head, cells in zip(heads, columns, strict=True))


def write_tables(of: StudyFigures, folder: Path) -> None:
    """table.csv, a line for each run; table.json, runs and points."""
    text = io.StringIO()
    axes = list(dict.fromkeys(axis.name for axis in [*of.sweep.study.serial_axes, *of.sweep.study.axes]))
    rows = [(point.point.choices, run, _run_facts(run)) for point in [*of.serial, *of.points] for run in point.runs]
    lines = csv.writer(text)
    lines.writerow(["run", *axes, *rows[0][2]])
    for choices, run, flat in rows:
        labels = [choices[axis].label if axis in choices else "" for axis in axes]
        lines.writerow([run.result.run.name, *labels, *("" if value is None else value for value in flat.values())])
    replace_file(folder / "table.csv", text.getvalue().encode())
    replace_file(folder / "table.json", msgspec.json.format(msgspec.json.encode(facts(of))) + b"\n")


def facts(of: StudyFigures) -> dict[str, Any]:
    """All figures as plain data. A diverged loss is null: JSON has no infinity."""
    study = of.sweep.study
    return {
        "name": study.name,
        "what": study.what,
        "target": None if study.target is None else study.target.words,
        "seeds": study.seeds,
        "emulated": of.emulated,
        "best": None if of.best is None else {"point": of.best.point.title, "by": of.best_by},
        "best_serial": None if of.best_serial is None else of.best_serial.point.title,
        "seen": paragraphs(of),
        "points": [_point_facts(one) for one in [*of.serial, *of.points]],
        "runs": [
            {"run": one.result.run.name, **_run_facts(one)} for point in [*of.serial, *of.points] for one in point.runs
        ],
    }


def _point_facts(one: PointFigures) -> dict[str, Any]:
    spreads = ["time", "rows", "rows_per_second", "seconds", "cpu", "last_loss", "best_loss", "accuracy", "waiting"]
    spreads += ["stale_mean", "stale_p95", "worst_loss", "distance"]
    return {
        "point": one.point.title,
        "serial": one.point.serial,
        "settings": one.point.changes,
        "runs": len(one.runs),
        "done": one.done,
        "reached": one.reached,
        "censored": one.censored,
        **{name: getattr(one, name) for name in spreads},
        "speedup": one.speedup,
        "hardware_efficiency": one.hardware,
        "statistical_efficiency": one.statistical,
        "speedup_same_rows": one.sooner,
    }


def _run_facts(one: RunFigures) -> dict[str, Any]:
    summary = one.result.summary
    return {
        "serial": one.result.run.point.serial,
        "seed": one.result.run.seed,
        "state": one.result.state,
        "reason": one.result.reason,
        "target": one.target,
        "time_to_target": one.time,
        "rows_to_target": one.rows,
        "seconds": one.seconds,
        "computing_seconds": one.computing,
        "cpu_seconds": one.cpu,
        "rows_per_second": one.rows_per_second,
        "last_loss": one.last_loss if format.finite(one.last_loss) else None,
        "best_loss": one.best_loss,
        "accuracy": one.accuracy,
        "train_loss": one.train_loss,
        "worst_loss": one.worst_loss if format.finite(one.worst_loss) else None,
        "distance": one.distance if format.finite(one.distance) else None,
        **{kind: one.spent.get(kind) for kind in ("compute", "communicate", "wait", "idle")},
        "staleness_mean": one.stale_mean,
        "staleness_p95": one.stale_p95,
        "staleness_max": one.stale_max,
        "bytes": one.bytes,
        "speedup": one.speedup,
        "hardware_efficiency": one.hardware,
        "statistical_efficiency": one.statistical,
        "speedup_same_rows": one.sooner,
        "cores": summary.get("cores"),
        "others": one.result.others,
        "emulated": summary.get("emulated", ""),
        "folder": f"runs/{one.result.folder.name}",
    }


def _worded(of: StudyFigures) -> list[str]:
    """Columns of words: the axes whose points have names."""
    axes = [*of.sweep.study.axes, *of.sweep.study.serial_axes]
    return [axis.short for axis in axes if all(choice.number is None for choice in axis.choices)]


def _choice(axis: str) -> Cell:
    return lambda one: one.point.choices[axis].label


def _reached(one: PointFigures) -> str:
    if one.complete:
        return f"{one.reached} of {len(one.runs)}"
    return f"{one.reached} of {one.done}, {len(one.runs) - one.done} left"


def _stale(one: PointFigures) -> str:
    if one.stale_mean is None or one.stale_p95 is None:
        return "-"
    return f"{one.stale_mean.median:.3g} ({one.stale_p95.median:g})"


def _spread(of: Spread | None, said: Callable[[float], str], spread: bool) -> str:
    if of is None:
        return "-"
    middle, low, high = said(of.median), said(of.low), said(of.high)
    return middle if low == high or not spread else f"{middle} ({low} .. {high})"


def _middle(spread: Spread | None, said: Callable[[float], str]) -> str:
    return "-" if spread is None else said(spread.median)


def _times(value: float) -> str:
    return f"{value:.2f}"
