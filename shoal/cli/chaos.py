"""``shoal chaos``. Heavy modules are imported only when a drill begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.common import as_json, changes, command, make_console, option, out_folder, say

if TYPE_CHECKING:
    from shoal.chaos.plan import ChaosSettings
    from shoal.chaos.report import ChaosReport
    from shoal.job import Job

ROWS = 500_000  # of the generated set: too many to overfit in a minute
EVALUATE_EVERY = 0.25  # epochs
# of all faults; the rest are kills and pauses
SHARES = {"joins": 0.15, "drains": 0.1, "cuts": 0.15}
MORE = 2  # servers that may join in addition


@command
@click.argument("data", default="clicks")
@option("--seed", type=int, default=0, help="Draw the faults from this seed.")
@option("--seconds", type=click.FloatRange(1), default=30.0, help="How long the clean run takes.")
@option("--servers", type=click.IntRange(1), default=3, help="How many servers hold the model.")
@option("--workers", type=click.IntRange(2), default=4, help="How many workers compute.")
@option("--copies", type=click.IntRange(1, 3), default=2, help="How many servers hold each segment.")
@option(
    "--strategy",
    type=click.Choice(["sync", "bounded", "async", "block-proximal"]),
    default="async",
    help="How the workers are kept in step.",
)
@changes
@option(
    "--without",
    type=click.Choice(list(SHARES)),
    multiple=True,
    help="Leave out this kind of fault; without cuts, messages go through no proxy.",
)
@option("--beyond", is_flag=True, help="Also kill the last copy, so that the run rolls back to a checkpoint.")
@out_folder("Write report.json and timeline.png here.")
@as_json("Print the report as JSON.")
def chaos(
    data: str,
    seed: int,
    seconds: float,
    changes: dict[str, Any],
    without: tuple[str, ...],
    beyond: bool,
    out: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train on DATA while processes are killed and paused, then account for every push.

    First a clean run, then the same work under fire: workers, servers and the coordinator are
    killed (-9), stopped and started again, cut off from each other; servers join, and are asked to
    leave. Never more than the copies allow. Exit code 1 if a push was lost or counted twice, or if
    sync ended at another model than its clean run.

    \b
    shoal chaos
    shoal chaos rcv1 --seconds 120 --seed 7 --copies 3 --out runs/chaos
    """
    from shoal.chaos.drill import drill
    from shoal.chaos.show import audience
    from shoal.job import Job
    from shoal.settings_tree import changed

    settings |= {"evaluate.every": EVALUATE_EVERY} | ({"data.rows": ROWS} if data == "clicks" else {})
    settings["checkpoint.every"] = max(2.0, seconds / 12)
    for name in changes:
        if name.partition(".")[0] == "stop":
            why = "a drill ends after the epochs of its clean run: say how long that is with --seconds"
            raise click.BadParameter(f"{name!r}: {why}", param_hint="--set")
    interrupted: KeyboardInterrupt | None = None
    job = Job.of(changed({"data": data}, settings | changes))
    _check_out(out)
    with audience() as seats:
        try:
            report = drill(job, _nemesis(job, seed, beyond, without), seconds, seats)
        except KeyboardInterrupt as error:
            if getattr(error, "report", None) is None:
                raise
            interrupted, report = error, error.report  # type: ignore[attr-defined]
    _show(report, as_json, out)
    if interrupted is not None:
        raise KeyboardInterrupt("; the report is of what was done until then")
    sys.exit(0 if report.ok else 1)


def _nemesis(job: Job, seed: int, beyond: bool, without: tuple[str, ...]) -> ChaosSettings:
    from shoal.chaos.plan import ChaosSettings

    joins, drains, cuts = (0.0 if name in without else share for name, share in SHARES.items())
    servers = job.copies, job.servers + MORE
    return ChaosSettings(seed=seed, beyond=beyond, joins=joins, drains=drains, cuts=cuts, servers=servers)


def _check_out(out: Path | None) -> None:
    """Check that the report can be written, before the drill."""
    import tempfile

    from shoal.files import or_refuse

    if out is None:
        return
    with or_refuse(f"write to {out}", "choose another folder (--out)"):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as file:
            file.write(b"report")
            file.flush()


def _show(report: ChaosReport, as_json: bool, out: Path | None) -> None:
    import msgspec

    from shoal.chaos.report import shown, timeline
    from shoal.errors import Invalid

    encoded = msgspec.json.format(msgspec.json.encode(report))
    if as_json:
        click.echo(encoded)
    else:
        make_console().print(shown(report))
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_bytes(encoded + b"\n")
        timeline(report, out / "timeline.png")
    except Invalid as error:
        say(f"no timeline.png: {error}")
    except OSError as error:
        raise click.ClickException(f"cannot write to {out}: {error.strerror}: choose another folder") from None
    if not as_json:
        click.echo(f"look at it: {click.format_filename(out)}")
