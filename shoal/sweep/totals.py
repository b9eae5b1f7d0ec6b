"""What the same rows cost, by the clock and in CPU seconds, and how accurate the models are at the end: in words, from the figures alone."""

from __future__ import annotations

from collections.abc import Callable

from shoal.events import counted
from shoal.sweep.figures import PointFigures, Spread, StudyFigures
from shoal.sweep.lines import at, lines_of, x_axis

EACH = 10  # points of a line that are told one by one
POINT = 0.01  # of accuracy


def same_rows(of: StudyFigures) -> str:
    """Every line against the best serial run, where all learned from as many rows."""
    serial = of.best_serial
    if not of.same_work or serial is None or serial.seconds is None or not any(one.sooner for one in of.points):
        return ""
    text = f"All runs learned from as many rows. The best serial run took {_seconds(serial.seconds.median)} s for them"
    text += f" and {_seconds(serial.cpu.median)} CPU seconds" if serial.cpu is not None else ""
    text += f". Times as fast: {_lines(of, lambda one: one.sooner, lambda value: f'{value:.2f}')}"
    if serial.cpu is not None and any(one.cpu is not None for one in of.points):
        cpu = serial.cpu.median
        text += f". Times the CPU seconds: {_lines(of, lambda one: one.cpu, lambda value: f'{value / cpu:.2f}')}"
    if of.cores is not None:
        text += f". Each run had {counted(of.cores, 'core')}"
    return f"{text}."


def accuracies(of: StudyFigures) -> str:
    """Every line, and what is more than a point below the best serial run."""
    if not any(one.accuracy is not None for one in of.points):
        return ""
    text = f"Accuracy at the end: {_lines(of, lambda one: one.accuracy, lambda value: f'{value:.4f}')}"
    if of.best_serial is None or of.best_serial.accuracy is None:
        return f"{text}."
    alone = of.best_serial.accuracy.median
    text += f"; the best serial run {alone:.4f}"
    known = [(one, one.accuracy.median) for one in of.points if one.accuracy is not None]
    below = [f"{one.point.title} ({100 * (mine - alone):+.1f})" for one, mine in known if alone - mine > POINT]
    if not below:
        return f"{text}. All are within a point of that, or above."
    more = f"; and {len(below) - EACH} more" if len(below) > EACH else ""
    return f"{text}. More than a point below that: {'; '.join(below[:EACH])}{more}."


def apart(of: StudyFigures) -> str:
    """How far everybody's models are from their mean at the end, where everybody has one (gossip)."""
    if not any(one.distance is not None for one in of.points):
        return ""
    text = f"Distance of the models from their mean at the end: {_lines(of, lambda one: one.distance, lambda value: f'{value:.2g}')}"
    if any(one.worst_loss is not None for one in of.points):
        text += f". Loss of the worst of them: {_lines(of, lambda one: one.worst_loss, lambda value: f'{value:.4f}')}"
    return f"{text}. The losses are those of the mean, which is nobody's model."


def _lines(of: StudyFigures, figure: Callable[[PointFigures], Spread | None], said: Callable[[float], str]) -> str:
    """psgd 0.98 at 1, 1.91 at 2; hogwild 0.97 at 1, 1.88 at 2."""
    axis = x_axis(of)
    parts = []
    for line in lines_of(of):
        known = [(one, spread) for one in line.points if (spread := figure(one)) is not None]
        if len(known) > EACH:
            known = [known[0], known[-1]]
        each = [f"{said(spread.median)} at {at(one, axis)}" if axis else said(spread.median) for one, spread in known]
        if each:
            parts.append(f"{line.label} {', '.join(each)}".strip())
    return "; ".join(parts)


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"
