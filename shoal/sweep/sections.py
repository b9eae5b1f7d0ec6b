"""The sections of a report on a sweep: the question, the findings, and every run."""

from __future__ import annotations

from collections.abc import Callable

from shoal.events import counted
from shoal.job import Job
from shoal.sweep.disk import Sweep, others
from shoal.sweep.figures import StudyFigures, figures
from shoal.sweep.findings import active_table, paragraphs
from shoal.sweep.pictures import pictures
from shoal.sweep.table import points_table, runs_table
from shoal.views import format
from shoal.views.axes import can_draw
from shoal.views.page import Section, TableSection
from shoal.views.run_record import emulation


def sections(sweep: Sweep) -> list[Section]:
    """The sections of the report page."""
    of = figures(sweep)
    there = active_table(of)
    tables = [points_table(of)] * bool(of.points) + [points_table(of, serial=True)] * bool(of.serial)
    return [
        Section(sweep.study.name, _asked(of), tables=[_settings(of)]),
        Section("Findings", paragraphs(of), pictures(of) if can_draw() else [], [*tables, *([there] if there else [])]),
        Section("Every run", _rest(sweep), tables=[runs_table(of)]),
    ]


def _asked(of: StudyFigures) -> list[str]:
    said = [of.sweep.study.what] if of.sweep.study.what else []
    if of.emulated:
        said.append(f"{' '.join(map(emulation, of.emulated))} Waiting, delay and staleness are measured.")
    return said


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


def _rest(sweep: Sweep) -> list[str]:
    number = others(sweep)
    return (
        [f"{counted(number, 'other run')} in the folder: not in the study any more, and not shown."] if number else []
    )
