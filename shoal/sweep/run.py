"""Run what is left of a study, and show what it says."""

from __future__ import annotations

from pathlib import Path

from shoal.data.datasets import check_source
from shoal.errors import Invalid
from shoal.files import Lock
from shoal.sweep.disk import (
    PointResult,
    Sweep,
    arrange,
    kept,
    look,
    write_study,
)
from shoal.sweep.schedule import SweepListener, SweepSchedule, check_out
from shoal.sweep.study import Study


def check_here(study: Study) -> None:
    """That it can be run on this machine: its cores, its data and its graphs are there."""
    study.places()
    for run in study.runs:
        try:
            check_source(run.job.data)
            run.job.strategy.check_here(run.job)
        except Invalid as error:
            raise Invalid(f"[{'serial' if run.point.serial else 'grid'}] {run.point.title}: {error}") from None


def stands(study: Study, out: Path) -> list[PointResult]:
    """How each run stands; nothing is changed."""
    cores = len(study.places()[0])
    there = kept(study, out, cores)
    found = []
    for run in study.runs:
        result = look(run, out, cores)
        if run.name in there and there[run.name] != result.folder:  # it has another name as yet
            result = PointResult(run, "finished", there[run.name])
        found.append(result)
    return found


def run_left(study: Study, out: Path, audience: SweepListener | None = None) -> Sweep:
    """Run what is not finished. A run that fails stops no other; whatever ends this ends its runs, and the next call goes on."""
    check_here(study)
    places = study.places()
    check_out(out)
    lock = Lock(out, out, "sweep")
    try:
        arrange(study, out, len(places[0]))
        write_study(study, out)
        todo = [run for run in study.runs if not look(run, out, len(places[0])).is_done]
        SweepSchedule(out, places, study.timeout, audience or SweepListener()).run(todo)
    finally:
        lock.release()
    return Sweep(study, [look(run, out, len(places[0])) for run in study.runs], out)
