"""``shoal limits``: prints every bound and default."""

from __future__ import annotations

import click


@click.command()
def limits() -> None:
    """Print every bound and default."""
    import inspect

    from shoal import limits as bounds
    from shoal.timing import TimingSettings

    page = inspect.getsource(bounds).partition("MB = 1 << 20\n")[2]
    units = ((" * MILLISECOND", " ms"), (" * SECOND", " s"), (" * MB", " MB"))
    for line in page.strip().splitlines():
        for unit, short in units:
            line = line.replace(unit, short)
        click.echo(line)
    click.echo(
        "\n# How long nodes wait for each other, if a job ([timing], in seconds) or whoever starts the cluster does not say."
    )
    for line in inspect.getsource(TimingSettings).splitlines():
        name, given, rest = line.strip().partition(": Nanoseconds = ")
        if given:
            for unit, short in units:
                rest = rest.replace(unit, short)
            click.echo(f"timing.{name} = {rest}")
