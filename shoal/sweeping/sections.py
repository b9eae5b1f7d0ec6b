"""A sweep, as a report says it: what was asked, what is seen, and every run."""

from __future__ import annotations

from shoal.events import counted
from shoal.sweeping.disk import Sweep, others
from shoal.sweeping.figures import Figures, figures
from shoal.sweeping.pictures import pictures
from shoal.sweeping.seen import paragraphs
from shoal.sweeping.table import points_table, runs_table
from shoal.views.sections import Section, Table


def sections(sweep: Sweep) -> list[Section]:
    """For the report page."""
    of = figures(sweep)
    tables = [points_table(of)] * bool(of.points) + [points_table(of, serial=True)] * bool(of.serial)
    return [
        Section(sweep.study.name, _asked(of), tables=[_settings(of)]),
        Section("What is seen", paragraphs(of), pictures(of), tables),
        Section("Every run", _rest(sweep), tables=[runs_table(of)]),
    ]


def _asked(of: Figures) -> list[str]:
    said = [of.sweep.study.what] if of.sweep.study.what else []
    if of.emulated:
        said.append(f"Emulated: {'; '.join(of.emulated)}. Waiting, delay and staleness are real, the computing is not.")
    return said


def _settings(of: Figures) -> Table:
    study = of.sweep.study
    rows = [[axis.name, ", ".join(choice.label for choice in axis.choices)] for axis in study.axes]
    rows += [[f"serial: {axis.name}", ", ".join(choice.label for choice in axis.choices)] for axis in study.serial_axes]
    rows.append(["seeds", ", ".join(map(str, study.seeds))])
    if study.target is not None:
        rows.append(["target (held-out loss)", study.target.words])
    if of.cores is not None:
        rows.append(["cores of each run", str(of.cores)])
    job = study.runs[-1].job
    rows.append(["data", f"{job.data.source.rsplit('/', 1)[-1]}, batches of {job.data.batch}"])
    rows.append(["evaluated", f"every {job.evaluate.every:g} passes"])
    return Table(["", ""], rows, "what was run")


def _rest(sweep: Sweep) -> list[str]:
    number = others(sweep)
    return (
        [f"{counted(number, 'other run')} in the folder: not in the study any more, and not shown."] if number else []
    )
