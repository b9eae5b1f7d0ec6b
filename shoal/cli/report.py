"""``shoal report``: pages about runs and sweeps, made from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.common import command, option, say

if TYPE_CHECKING:
    from shoal.views.page import Section
    from shoal.views.run_record import RunRecord


def make(
    paths: Sequence[Path], out: Path | None = None, as_markdown: bool = False, trace: Path | None = None
) -> list[Path]:
    """Write a report about runs and sweeps (and a trace of the runs); returns the files."""
    from shoal.errors import Invalid
    from shoal.views import page, report_sections
    from shoal.views.trace import traced
    from shoal.views.trace import write as write_trace

    runs, parts, titles = _read(paths)
    if trace is not None and not runs:
        raise Invalid("a trace is of runs, and these are sweeps: give the folder of a run in it")
    target = _target(paths[0], out, as_markdown)
    for path in (target, trace):
        if path is not None and (path.is_symlink() or (path.exists() and not path.is_file())):
            raise Invalid(f"{path} is there, and is no plain file: choose another name")
    if trace is not None and trace.resolve() == target.resolve():
        raise Invalid(f"the page and the trace would both be {trace}: choose two names")
    if runs:
        parts = [*report_sections.sections(runs), *parts]
        titles = [report_sections.title(runs), *titles]
    written, at = [target], target
    try:
        write = page.write_markdown if as_markdown else page.write_html
        write(target, " · ".join(titles), parts, "Made by shoal report, from the events of the runs alone.")
        if trace is not None:
            at = trace
            write_trace(traced([(one.name, one.run) for one in runs]), trace)
            written.append(trace)
    except OSError as error:
        name = error.filename or at
        raise Invalid(f"cannot write {name}: {error.strerror}: make room, or choose another place (--out)") from None
    return written


def _read(paths: Sequence[Path]) -> tuple[list[RunRecord], list[Section], list[str]]:
    """The runs, the sections of sweeps, and the names of sweeps."""
    from shoal.sweep.disk import Sweep, is_sweep
    from shoal.sweep.report import sections
    from shoal.views.run_record import named, read

    runs: list[RunRecord] = []
    parts: list[Section] = []
    titles: list[str] = []
    for path in dict.fromkeys(paths):  # a run that is given twice
        if is_sweep(path):
            name = f"sweep {path.resolve().name}"
            found = sections(Sweep.load(path))
            parts += found if len(paths) == 1 else [replace(one, title=f"{name}: {one.title}") for one in found]
            titles.append(name)
        else:
            runs.append(read(path))
    named(runs)
    return runs, parts, titles


def _target(first: Path, out: Path | None, as_markdown: bool) -> Path:
    """The file to write; refused before the work if that is impossible."""
    from shoal.errors import Invalid
    from shoal.files import or_refuse

    name = "report.md" if as_markdown else "report.html"
    if out is None:
        return first / name
    if out.is_dir() or out.suffix.lower() not in (".html", ".htm", ".md"):
        with or_refuse(f"make the folder {out}", "choose another (--out)"):
            out.mkdir(parents=True, exist_ok=True)
        return out / name
    if as_markdown and out.suffix.lower() != ".md":
        raise Invalid(f"{out.name} is no name of a Markdown file: end it in .md, or leave --markdown away")
    if not out.parent.is_dir():
        raise Invalid(f"there is no folder {out.parent} to write {out.name} to: make it first")
    return out


@command
@click.argument("paths", metavar="RUN|SWEEP...", nargs=-1, required=True, type=click.Path(path_type=Path))
@option(
    "--out",
    metavar="DIR|FILE",
    type=click.Path(path_type=Path),
    help="Write it here.  [default: report.html in the first folder]",
)
@option("--markdown", "as_markdown", is_flag=True, help="Write Markdown, with the pictures beside it, instead of HTML.")
@option(
    "--trace",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the spans of the runs as a trace, for ui.perfetto.dev or chrome://tracing.",
)
def report(paths: tuple[Path, ...], out: Path | None, as_markdown: bool, trace: Path | None) -> None:
    """Make one page about runs or sweeps: what is seen in words, losses, where the time
    went, timelines, staleness, faults.

    Several runs are compared in one page, which needs no other file and no network.

    \b
    shoal report runs/clicks-logistic-async-1
    shoal report runs/sync runs/async --out both.html --trace both.json
    """
    from shoal.views.axes import can_draw

    written = make(paths, out, as_markdown or (out is not None and out.suffix.lower() == ".md"), trace)
    if not can_draw():
        say("no pictures: matplotlib is not installed; pip install matplotlib (or the extra `view`)")
    for path in written:
        click.echo(f"look at it: {click.format_filename(path)}")
