"""``shoal simulate``: runs seeds, traces one of them, shrinks it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.common import CommandError, option, print_json
from shoal.simulation import FORMER, SCENARIOS

if TYPE_CHECKING:
    from shoal.simulation.faults import SeedPlan
    from shoal.simulation.scenarios import SeedTotals, Verdict


class ScenarioChoice(click.Choice[str]):
    """A scenario by name; accepts old names, too."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(FORMER.get(value, value), param, ctx)


@click.command()
@option("--of", type=ScenarioChoice(sorted(SCENARIOS)), default="store", help="The scenario to simulate.")
@option("--seed", type=int, help="Run this one seed.")
@option("--plan", help="Run this one plan, as --shrink prints it: FaultPlan(...).")
@option("--seeds", type=click.IntRange(1), default=200, help="Run so many seeds.")
@option("--first", type=int, default=0, help="Start with this seed.")
@option("--jobs", type=click.IntRange(1), help="Run them in so many processes.  [default: one for each core]")
@option("--mutant", help="Run a broken variant of the protocol, to see it caught ('list' names them).")
@option("--trace", is_flag=True, help="With --seed: print every message.")
@option("--shrink", "shorter", is_flag=True, help="With --seed: look for the shortest plan that fails the same way.")
@option("--history", type=click.Path(dir_okay=False, path_type=Path), help="With --seed: write the history here.")
@option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def simulate(
    of: str,
    seed: int | None,
    plan: str | None,
    seeds: int,
    first: int,
    jobs: int | None,
    mutant: str | None,
    trace: bool,
    shorter: bool,
    history: Path | None,
    as_json: bool,
) -> None:
    """Run whole clusters in one thread, with faults drawn from seeds, and check every promise.

    --of chooses the scenario: clients of a store, servers that join and leave (moves), training
    runs, workers that gossip, or peers.

    Exit code 1 if a promise was broken. The seed is enough to see it again (--seed N --trace) and
    to shrink it (--seed N --shrink).
    """
    from shoal.simulation.scenarios import scenario
    from shoal.simulation.shrink import verdict_of

    chosen = scenario(of)
    try:
        mutants = chosen.mutants if mutant else {}
    except FileNotFoundError as error:
        raise CommandError(str(error)) from None
    if mutant == "list":
        for name, make in mutants.items():
            click.echo(f"  {name:40}{make.__doc__}")
        return
    if mutant and mutant not in mutants:
        raise click.BadParameter(f"no mutant {mutant!r}: --of {of} --mutant list names them", param_hint="--mutant")
    if of not in ("store", "moves") and history:
        raise click.UsageError(f"--of {of} records no history: use --seed with --trace")
    if seed is None and plan is None:
        if trace or history or shorter:
            raise click.UsageError("--trace, --shrink and --history go with one --seed or --plan")
        _run_many(of, range(first, first + seeds), jobs, mutant or "", as_json)
        return
    if history:
        try:
            history.touch()  # check it before the work
        except OSError as error:
            raise click.BadParameter(f"cannot write {history}: {error.strerror}", param_hint="--history") from None
    with chosen.mutated(mutant or ""):
        run = _read(plan) if plan is not None else chosen.draw(seed or 0)
        if shorter:
            _shrink(run, of, mutant or "")
        verdict = verdict_of(run, click.echo if trace else None)
    if history:
        from shoal.events import write

        write(history, verdict.history)
    _show_one(verdict, as_json)
    raise SystemExit(0 if verdict.ok else 1)


def _read(text: str) -> SeedPlan:
    from shoal.simulation.faults import SeedPlan

    try:
        return SeedPlan.read(text)
    except ValueError as error:
        raise click.BadParameter(f"not a plan: {error}", param_hint="--plan") from None


def _shrink(plan: SeedPlan, of: str, mutant: str) -> None:
    from shoal.simulation.shrink import as_test, first_violation, shrink

    shortest = shrink(plan, lambda tries, smaller: _show_state(f"\r{tries} tries: {len(smaller.faults)} faults left "))
    _show_state("\n")
    violation = first_violation(shortest)
    if violation is None:
        click.secho("every promise held: there is nothing to shrink", fg="green")
        raise SystemExit(0)
    click.echo(f"{len(plan.faults)} faults became {len(shortest.faults)}:\n")
    click.echo(as_test(shortest, str(violation)))
    which = f"--of {of} " + (f"--mutant {mutant!r} " if mutant else "")
    click.echo(f'see it: shoal simulate {which}--trace --plan "{shortest!r}"')
    raise SystemExit(1)


def _show_one(verdict: Verdict, as_json: bool) -> None:
    if as_json:
        facts = {
            "seed": verdict.plan.seed,
            "plan": repr(verdict.plan),
            "ok": verdict.ok,
            "violations": [str(one) for one in verdict.violations],
            "events": verdict.events,
            "virtual_seconds": verdict.seconds,
            "digest": verdict.digest,
            "counts": dict(verdict.counts),
        }
        print_json(facts)
        return
    click.echo(str(verdict.plan))
    click.echo(f"{verdict.events:,} events in {verdict.seconds:.1f} virtual seconds, hash {verdict.digest}")
    _show_counts(verdict.counts)
    for violation in verdict.violations:
        click.secho(f"broken: {violation}", fg="red")
    if verdict.ok:
        click.secho("every promise held", fg="green")


def _show_state(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(text, nl=False, err=True)


def _show_counts(counts: dict[str, int]) -> None:
    """Print counts: the faults first, then their effects."""
    for what, count in sorted(counts.items(), key=lambda one: (not one[0].startswith("fault"), one[0])):
        if count > 0:
            click.echo(f"  {count:9,}  {what}")


def _run_many(of: str, seeds: range, jobs: int | None, mutant: str, as_json: bool) -> None:
    from shoal.simulation.scenarios import simulate_many

    def progress(tally: SeedTotals) -> None:
        _show_state(f"\r{tally.seeds:,} of {len(seeds):,} seeds, {tally.events:,} events")

    tally = simulate_many(seeds, jobs, mutant, progress, of)
    _show_state("\n")
    if as_json:
        print_json(tally.facts())
    else:
        faults = sum(count for what, count in tally.counts.items() if what.startswith("fault"))
        click.echo(
            f"{tally.seeds:,} schedules, {tally.events:,} events, {faults:,} faults, "
            f"{tally.virtual_seconds:,.0f} virtual seconds"
        )
        _show_counts(tally.counts)
        for plan, violation in list(dict(reversed(tally.broken)).items())[:10]:  # once per seed
            click.secho(f"{plan}\n  broken: {violation}", fg="red")
        if tally.broken:
            which = "" if of == "store" else f" --of {of}"
            again = f"shoal simulate{which} --seed {tally.first_broken}" + (f" --mutant {mutant!r}" if mutant else "")
            click.echo(f"{len(tally.broken)} promises broken; see one: {again} --trace; shrink it: --shrink")
        else:
            click.secho("every promise held in all of them", fg="green")
    raise SystemExit(1 if tally.broken else 0)
