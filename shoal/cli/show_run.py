"""What is printed of a run that is over, by whichever command began it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shoal.run.finished import Run


def show_run(run: Run, as_json: bool) -> None:
    """Print the figures; a run that had to be saved elsewhere ends in exit code 1, and the last line says where it is."""
    _print(run, as_json)
    if run.rescued:
        where = click.format_filename(run.folder or "")
        raise click.ClickException(f"{run.rescued}: the run is in {where}: make room, and move it there")


def _print(run: Run, as_json: bool) -> None:
    import msgspec

    from shoal.events import Evaluated
    from shoal.views import figures, format
    from shoal.views.run_record import NEVER_LATE

    if as_json:
        facts = {**run.summary, "folder": click.format_filename(run.folder or "")}
        click.echo(msgspec.json.format(msgspec.json.encode(facts)))  # unlike json it has a word for a loss of infinity
        return
    if not run.job.verbosity:
        return
    facts = run.summary
    metrics = ", ".join(
        f"{name} {format.metric(name, value)}" for name, value in facts["metrics"].items() if value is not None
    )
    stale, seconds, moved = facts["staleness"], facts["seconds"], facts["bytes_sent"] + facts["bytes_received"]
    late = stale["mean"] is not None and facts["strategy"] not in NEVER_LATE
    lost = figures.lost(facts.get("lost_updates"))
    click.echo(f"test loss {facts['test_loss']:.4f}{', ' if metrics else ''}{metrics} ({facts['stopped_because']})")
    click.echo(
        f"{facts['examples']:,} examples in {facts['computing_seconds']:.1f} s ({facts['examples_per_second']:,.0f} a second)"
        f"{'' if seconds < 1.1 * facts['computing_seconds'] else f', judged after {seconds:.1f} s'}, "
        f"{facts['steps']:,} steps"
        + (f"; {facts['cpu_seconds']:,.1f} CPU seconds" if facts.get("cpu_seconds") is not None else "")
        + (f"; {moved / 1e6:,.0f} MB moved{figures.saved(facts)}" if moved else "")
        + (f"; staleness {stale['mean']:g} on average, {stale['max']} at most" if late else "")
        + (f"; {lost}" if lost else "")
        + (f"; {facts['emulated']}" if facts.get("emulated") else "")
    )
    if said := figures.line(facts):
        click.echo(said)
    best = min((event for event in run.events if isinstance(event, Evaluated)), key=lambda event: event.test_loss)
    if (
        facts["metrics"].get("objective") is not None
    ):  # it was asked for the solution, not for the best of the way there
        if run.job.stop.is_solved_by_rule and facts["stopped_because"].endswith("done"):
            click.echo(
                "not solved by stop.objective and stop.violation yet: more epochs go on with it (--resume, --epochs)"
            )
    elif best.test_loss < facts["test_loss"] - 1e-4:
        click.echo(
            f"these are the last weights; the best were at epoch {best.passes:.3g} (test loss {best.test_loss:.4f}): "
            f"--set stop.patience=3 stops there and keeps them"
        )
    if said := figures.models(facts.get("spread")):
        click.echo(said)
    folder = run.folder or Path()
    picture = folder / "loss.png"
    click.echo(f"look at it: {click.format_filename(picture if picture.exists() else folder)}")
