"""The report on a sweep: tables, printed and as files, and the sections of a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shoal.events import counted
from shoal.files import replace_file
from shoal.job import Job
from shoal.sweep.disk import Sweep, others
from shoal.sweep.findings import active_table, all_at_work, paragraphs
from shoal.sweep.plots import pictures
from shoal.sweep.results import (
    PointFigures,
    RunFigures,
    StudyFigures,
    figures,
)
from shoal.views import format
from shoal.views.axes import can_draw
from shoal.views.page import Section, TableSection, compact
from shoal.views.run_record import emulation

# The heading and the format of each figure, in the order of the table of points.
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "time_to_target": ("seconds to target", format.exact_seconds),
    "rows_to_target": ("rows to target", "{:,.0f}".format),
    "last_loss": ("test loss", format.loss),
    "best_loss": ("best", format.loss),
    "accuracy": ("accuracy", "{:.4f}".format),
    "worst_loss": ("worst node", format.loss),
    "distance": ("distance", "{:.2g}".format),
    "rows_per_second": ("rows/s", "{:,.0f}".format),
    "computing_seconds": ("seconds", format.exact_seconds),
    "speedup_same_rows": ("x serial, same rows", "{:.2f}".format),
    "cpu_seconds": ("CPU seconds", format.exact_seconds),
    "waiting": ("waiting", format.share),
    "staleness_mean": ("staleness (p95)", "{:.3g}".format),
    "speedup": ("speedup", "{:.2f}".format),
    "hardware_efficiency": ("rows/s x serial", "{:.2f}".format),
    "statistical_efficiency": ("per row x serial", "{:.2f}".format),
    "bytes": ("MB moved", lambda size: f"{size / 1e6:,.1f}"),
}
OF_RUNS = (
    "time_to_target", "rows_to_target", "last_loss", "best_loss", "accuracy", "computing_seconds", "cpu_seconds",
    "rows_per_second", "waiting", "bytes",
)  # fmt: skip
WITH_RANGE = ("time_to_target", "last_loss", "accuracy", "speedup")
LEAST = (
    "staleness (p95)", "rows to target", "per row x serial", "rows/s x serial", "waiting", "CPU seconds", "rows/s",
    "seconds", "distance", "worst node", "test loss", "x serial, same rows", "accuracy",
)  # fmt: skip
IN_JSON = {  # figures of points by their names in table.json
    "time": "time_to_target", "rows": "rows_to_target", "rows_per_second": "rows_per_second",
    "seconds": "computing_seconds", "cpu": "cpu_seconds", "last_loss": "last_loss", "best_loss": "best_loss",
    "accuracy": "accuracy", "waiting": "waiting", "stale_mean": "staleness_mean", "stale_p95": "staleness_p95",
    "worst_loss": "worst_loss", "distance": "distance", "speedup": "speedup",
    "hardware_efficiency": "hardware_efficiency", "statistical_efficiency": "statistical_efficiency",
    "speedup_same_rows": "speedup_same_rows",
}  # fmt: skip


def points_table(of: StudyFigures, serial: bool = False, ranges: bool = True) -> TableSection:
    """One row for each point, without empty columns; ``ranges``: with lowest and highest."""
    points = of.serial if serial else of.points
    axes = of.sweep.study.serial_axes if serial else of.sweep.study.axes
    left_out = {"best_loss", "bytes", *(() if of.same_work else ["computing_seconds"])}
    if not of.has_target:
        left_out |= {"time_to_target", "rows_to_target"}
    names = [name for name in FIGURES if name not in left_out]
    progress = ["reached"] if of.has_target else ["done"] if not all(one.complete for one in points) else []
    heads = [*(axis.short for axis in axes), *progress, *(FIGURES[name][0] for name in names), ""]
    best, tied = (of.best_serial, []) if serial else (of.best, of.tied)
    rows = []
    for one in points:
        cells = [one.point.choices[axis.name].label for axis in axes]
        cells += [_progress(one, of.has_target)] * len(progress)
        cells += [_cell(one, name, ranges) for name in names]
        rows.append([*cells, "best" if one is best else "tied" if any(one is other for other in tied) else ""])
    table = TableSection(heads, rows, "serial runs" if serial else "")
    return _without(table, [at for at in range(len(heads)) if all(row[at] in ("", "-") for row in rows)])


def _cell(one: PointFigures, name: str, ranges: bool) -> str:
    spread, (_, form) = one.spread(name), FIGURES[name]
    if spread is None:
        return "-"
    if name == "staleness_mean":
        late = one.spread("staleness_p95")
        return "-" if late is None else f"{form(spread.median)} ({late.median:g})"
    return spread.text(form, between="..") if ranges and name in WITH_RANGE else form(spread.median)


def _progress(one: PointFigures, has_target: bool) -> str:
    if not has_target:
        return f"{one.done} of {len(one.runs)}"
    left = f", {len(one.runs) - one.done} left" if not one.complete else ""
    return f"{one.reached} of {one.done}{left}"


def _without(table: TableSection, columns: Sequence[int]) -> TableSection:
    heads, *rows = ([cell for at, cell in enumerate(row) if at not in columns] for row in (table.heads, *table.rows))
    return TableSection(heads, rows, table.caption)


def runs_table(of: StudyFigures) -> TableSection:
    """One row for each run; common values are in the caption."""
    rows = []
    for run in _runs(of):
        values = [(getattr(run, name), FIGURES[name][1]) for name in OF_RUNS]
        cells = ["-" if value is None else form(value) for value, form in values]
        rows.append([run.result.run.point.title, str(run.result.run.seed), run.result.state, *cells])
    return compact(TableSection(["point", "seed", "state", *(FIGURES[name][0] for name in OF_RUNS)], rows))


def printed(of: StudyFigures, width: int) -> Group:
    axes = [*of.sweep.study.axes, *of.sweep.study.serial_axes]
    words = ["", *(axis.short for axis in axes if all(choice.number is None for choice in axis.choices))]
    tables = [_fitting(of, serial, width) for serial in [True] * bool(of.serial) + [False] * bool(of.points)]
    parts: list[Table | Text] = [_rich(table, table.caption, words) for table in tables]
    there = active_table(of)
    if there is not None and not all_at_work(of):
        parts.append(_rich(there, "workers present at each loss"))
    for paragraph in paragraphs(of):
        parts += [Text(paragraph), Text("")]
    return Group(*parts)


def _rich(table: TableSection, title: str, words: Sequence[str] = ()) -> Table:
    """For a terminal; columns of ``words`` are aligned to the left, the best row is bold."""
    shown = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for head in table.heads:
        shown.add_column(head.replace(" ", "\n"), justify="left" if head in words else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row), style="bold" if row[-1] == "best" else None)
    return shown


def _fitting(of: StudyFigures, serial: bool, width: int) -> TableSection:
    """A table that fits a terminal: without ranges, then without the least important columns."""
    table = points_table(of, serial)
    if _width(table) > width:
        table = points_table(of, serial, ranges=False)
    for head in LEAST:
        if _width(table) > width and head in table.heads:
            table = _without(table, [table.heads.index(head)])
    return table


def _width(table: TableSection) -> int:
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.heads)
    heads = [max(map(len, head.split(" "))) for head in table.heads]
    return 2 + sum(3 + max([head, *map(len, cells)]) for head, cells in zip(heads, columns, strict=True))


def write_tables(of: StudyFigures, folder: Path) -> None:
    """table.csv, a line for each run; table.json, runs and points."""
    text = io.StringIO()
    axes = list(dict.fromkeys(axis.name for axis in [*of.sweep.study.serial_axes, *of.sweep.study.axes]))
    runs = _runs(of)
    lines = csv.writer(text)
    lines.writerow(["run", *axes, *_run_facts(runs[0])])
    for run in runs:
        choices = run.result.run.point.choices
        labels = [choices[axis].label if axis in choices else "" for axis in axes]
        lines.writerow([run.result.run.name, *labels, *_run_facts(run).values()])  # None is empty
    replace_file(folder / "table.csv", text.getvalue().encode())
    replace_file(folder / "table.json", msgspec.json.format(msgspec.json.encode(facts(of))) + b"\n")


def facts(of: StudyFigures) -> dict[str, Any]:
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
        "runs": [{"run": one.result.run.name, **_run_facts(one)} for one in _runs(of)],
    }


def _runs(of: StudyFigures) -> list[RunFigures]:
    return [run for point in [*of.serial, *of.points] for run in point.runs]


def _point_facts(one: PointFigures) -> dict[str, Any]:
    return {
        "point": one.point.title,
        "serial": one.point.serial,
        "settings": one.point.changes,
        "runs": len(one.runs),
        "done": one.done,
        "reached": one.reached,
        "censored": one.censored,
        **{name: one.spread(figure) for name, figure in IN_JSON.items()},
    }


def _run_facts(one: RunFigures) -> dict[str, Any]:
    """Its figures. A diverged loss is None: JSON has no infinity."""
    result = one.result
    known = {each.name: getattr(one, each.name) for each in fields(one) if each.name != "result"}
    diverged = [name for name in ("last_loss", "worst_loss", "distance") if not format.finite(known[name])]
    return {
        "serial": result.run.point.serial,
        "seed": result.run.seed,
        "state": result.state,
        "reason": result.reason,
        **known,
        **dict.fromkeys(diverged),
        "cores": result.summary.get("cores"),
        "others": result.others,
        "emulated": result.summary.get("emulated", ""),
        "folder": f"runs/{result.folder.name}",
    }


def sections(sweep: Sweep) -> list[Section]:
    of = figures(sweep)
    there, former = active_table(of), others(sweep)
    asked = [sweep.study.what] if sweep.study.what else []
    if of.emulated:
        asked.append(f"{' '.join(map(emulation, of.emulated))} Waiting, delay and staleness are measured.")
    rest = (
        [f"{counted(former, 'other run')} in the folder: not in the study any more, and not shown."] if former else []
    )
    tables = [points_table(of)] * bool(of.points) + [points_table(of, serial=True)] * bool(of.serial)
    return [
        Section(sweep.study.name, asked, tables=[_settings(of)]),
        Section("Findings", paragraphs(of), pictures(of) if can_draw() else [], [*tables, *([there] if there else [])]),
        Section("Every run", rest, tables=[runs_table(of)]),
    ]


def _settings(of: StudyFigures) -> TableSection:
    study = of.sweep.study
    rows = [[axis.name, ", ".join(choice.label for choice in axis.choices)] for axis in study.axes]
    rows += [[f"serial: {axis.name}", ", ".join(choice.label for choice in axis.choices)] for axis in study.serial_axes]
    rows.append(["seeds", ", ".join(map(str, study.seeds))])
    if study.target is not None:
        rows.append(["target (held-out loss)", study.target.words])
    if of.cores is not None:
        rows.append(["cores of each run", str(of.cores)])
    jobs = [run.job for run in study.runs if not run.point.serial] or [run.job for run in study.runs]
    facts: list[tuple[str, Callable[[Job], str]]] = [
        ("data", lambda job: format.clean(job.data.source.rsplit("/", 1)[-1])),
        ("rows", lambda job: "all" if job.data.rows is None else f"{job.data.rows:,}"),
        ("rows in a slot", lambda job: str(job.data.batch)),
        ("model", lambda job: job.model.name),
        ("strategy", lambda job: job.strategy.name),
        ("workers", lambda job: str(job.workers)),
        ("update", lambda job: job.update.rule),
        ("step", lambda job: "as usual" if job.update.step is None else f"{job.update.step:g}"),
        ("evaluated every", lambda job: f"{job.evaluate.every:g} of an epoch"),
        ("passes", lambda job: f"{job.stop.passes:g}"),
    ]
    rows += [[name, ", ".join(dict.fromkeys(map(fact, jobs)))] for name, fact in facts]
    return TableSection(["", ""], rows, "what was run")
