"""``shoal limits``: prints bounds and defaults with their purposes."""

from __future__ import annotations

import re

import click

from shoal.cli.common import CommandError, command, meant

UNITS = ((" * MILLISECOND", " ms"), (" * SECOND", " s"), (" * MB", " MB"))
TIMING = "How long nodes wait for each other; a job sets it as [timing], in seconds."


@command
@click.argument("name", required=False)
def limits(name: str | None) -> None:
    """Print bounds and defaults: all, or those whose NAME contains this.

    \b
    shoal limits
    shoal limits frame
    shoal limits timing.dead
    """
    sections = _sections()
    if name is not None:
        found = [(title, [one for one in rows if name.lower() in one[0].lower()]) for title, rows in sections]
        if not any(rows for _, rows in found):
            names = [one[0] for _, rows in sections for one in rows]
            raise CommandError(f"no bound is like {name!r}: {meant(name.upper(), names, 'shoal limits lists all')}")
        sections = found
    for title, rows in sections:
        if not rows:
            continue
        click.echo(f"\n{title}")
        wide = max(len(f"{one} = {value}") for one, value, _ in rows)
        for one, value, about in rows:
            click.echo(f"  {f'{one} = {value}':<{min(wide, 44)}}  {about}".rstrip())


def _sections() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Titles, each with names, values and comments, as in the source."""
    import inspect

    from shoal import limits as bounds
    from shoal.timing import TimingSettings

    page = inspect.getsource(bounds).partition("MB = 1 << 20\n")[2]
    sections: list[tuple[str, list[tuple[str, str, str]]]] = []
    for line in page.splitlines():
        if line.startswith("# "):
            sections.append((line.removeprefix("# "), []))
        elif found := re.match(r"(\w+) = (.*)", line):
            sections[-1][1].append((found[1], *_value(found[2])))
    waits = re.findall(r"^    (\w+): Nanoseconds = (.*)$", inspect.getsource(TimingSettings), re.MULTILINE)
    return [*sections, (TIMING, [(f"timing.{name}", *_value(rest)) for name, rest in waits])]


def _value(text: str) -> tuple[str, str]:
    value, _, about = text.partition("  # ")
    for unit, short in UNITS:
        value = value.replace(unit, short)
    return value.strip(), about.strip()
