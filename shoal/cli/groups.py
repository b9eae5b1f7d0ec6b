"""``shoal groups``: groups of workers and their limits. ``shoal evaluate``: a model's loss."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from shoal import limits
from shoal.cli.common import (
    Seconds,
    as_json,
    asks_for_keys,
    command,
    ends_soon,
    option,
    print_json,
    run_or_address,
    say,
)
from shoal.signals import end_when_told


@command
@run_or_address
@option("--allow", metavar="GROUP", help="Say what this group may have from now on, by the options below.")
@option(
    "--mb", type=click.IntRange(0), help="Megabytes of weights; 0: no bound.  [default: as before; at first no bound]"
)
@option(
    "--tables",
    type=click.IntRange(0),
    help=f"How many tables it may have.  [default: as before; at first {limits.GROUP_TABLES}]",
)
@option(
    "--members",
    type=click.IntRange(0),
    help=f"How many members it may have.  [default: as before; at first {limits.GROUP_MEMBERS}]",
)
@option(
    "--reads",
    multiple=True,
    metavar="GROUP",
    help="It may pull from that group's tables; cluster: those of none; may be repeated.  [default: as before]",
)
@option("--dissolve", metavar="GROUP", help="Forget all tables of a group that is not at work any more.")
@as_json()
@asks_for_keys
def groups(
    where: str, allow: str | None, dissolve: str | None, as_json: bool, keys: str | None, insecure: bool, **bounds: Any
) -> None:
    """Groups of workers on one group of servers: what each has, and what it may have.

    \b
    shoal groups runs/first
    shoal groups runs/first --allow b --mb 200 --tables 4 --reads cluster
    shoal groups runs/first --dissolve b

    With keys: what groups may have is said with the coordinator's key, on its machine.
    """
    from shoal.client import connect_by
    from shoal.inspect.status import address_of, safety_for
    from shoal.wire.messages.groups import GroupLimits

    with connect_by(safety_for(where, keys, insecure), address_of(where)) as kv:
        if allow is not None:
            before = next((one for one in kv.groups() if one.name == allow), GroupLimits(allow))
            given = {name: value for name, value in bounds.items() if value not in (None, ())}
            kv.allow(allow, **{name: given.get(name, getattr(before, name)) for name in bounds})
        if dissolve is not None:
            kv.dissolve(dissolve)
        found = _rows(kv)
    if as_json:
        print_json(found)
        return
    for one in found:
        click.echo(_line(one))
    if not found:
        click.echo("no groups: all that is here is the cluster's own")


def _rows(kv: Any) -> list[dict[str, Any]]:
    from shoal.cluster.groups import allowed, weights_of
    from shoal.wire.messages.groups import dealer, namespace

    tables, named = kv.tables(), {group.name: group for group in kv.groups()}
    people = kv.members
    names = sorted({*named, *(namespace(one) for one in (*tables, *people)), ""} - {""})
    found = []
    for name in names:
        own, quota = {table: spec for table, spec in tables.items() if namespace(table) == name}, allowed(named, name)
        size = weights_of(own.values())
        found.append(
            {
                "group": name,
                "at_work": dealer(name) in people,
                "members": sum(namespace(one) == name for one in people),
                "members_most": quota.members,
                "tables": sorted(own),
                "tables_most": quota.tables,
                "mb": None if size is None else round(size / limits.MB, 3),
                "mb_most": quota.mb or None,
                "reads": quota.reads,
            }
        )
    return found


def _line(one: dict[str, Any]) -> str:
    size = "no end to its keys" if one["mb"] is None else f"{one['mb']:,.1f} MB"
    most = f" of {one['mb_most']:,}" if one["mb_most"] else ", no bound"
    over = one["mb_most"] and one["mb"] is not None and one["mb"] > one["mb_most"]
    over = over or one["members"] > one["members_most"] or len(one["tables"]) > one["tables_most"]
    reads = f", reads {', '.join(one['reads'])}" if one["reads"] else ""
    return (
        f"{one['group']}: {'at work' if one['at_work'] else 'not at work'}, {one['members']} of {one['members_most']} members, "
        f"{len(one['tables'])} of {one['tables_most']} tables ({', '.join(one['tables']) or 'none'}), {size}{most}{reads}"
        + ("; more than it may have: what is there stays, and nothing is added" if over else "")
    )


@command
@run_or_address
@click.argument("data", metavar="DATA")
@option(
    "--job",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The job file of the run, where an ADDRESS is given.",
)
@option("--table", default="weights", help="The table to evaluate; another group's is called group/weights.")
@option("--group", default="", help="Evaluate as a member of this group, which may read that table.")
@option("--every", type=Seconds(0.05), help="Evaluate again every so many seconds, while the run goes on.")
@as_json("Print one line of JSON for each evaluation.")
@asks_for_keys
def evaluate(
    where: str,
    data: str,
    job: Path | None,
    table: str,
    group: str,
    every: float | None,
    as_json: bool,
    keys: str | None,
    insecure: bool,
) -> None:
    """Evaluate the model of a run on DATA, while others train it or afterwards.

    DATA is a name of `shoal data list`, evaluated on its test rows, or a file, evaluated on all of
    them.

    \b
    shoal evaluate runs/first a9a
    shoal evaluate runs/first more-rows.svm --every 5
    shoal evaluate ipc:///tmp/... rows.svm --job a.toml --group b --table /weights
    """
    from shoal.errors import ShoalError
    from shoal.inspect.evaluate import ModelEvaluator
    from shoal.job import Job

    end_when_told()
    known = None if job is None else Job.load(job)
    with ModelEvaluator(where, data, known, table, group, keys=keys, insecure=insecure) as judging:
        if judging.note:
            say(f"note: {judging.note}")
        found = judging.look()
        _show(found, as_json)
        while every is not None and found.live:
            time.sleep(every)  # on request
            try:
                found = judging.look()
            except ShoalError:
                if not ends_soon(where):
                    raise
                say("the run is over")
                return
            _show(found, as_json)


def _show(found: Any, as_json: bool) -> None:
    import msgspec

    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        metrics = "".join(f", {name} {value:.4f}" for name, value in found.metrics.items() if value is not None)
        when = f" after {found.steps:,} steps" if found.steps is not None else ""
        click.echo(f"loss {found.loss:.4f}{metrics} on {found.rows:,} rows{when}")
    sys.stdout.flush()
