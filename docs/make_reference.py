"""Write docs/reference/{cli,job-file,events,python}.md from the code.

    python docs/make_reference.py [FOLDER]

A test compares the pages with what this writes. Field descriptions are the comments in the source.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

import shoal
from shoal import events, job
from shoal.cli.main import main as program

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/make_reference.py: change the code, then run that. -->"


def comments(kind: type) -> dict[str, str]:
    """The comment of every field, by its name; fields of base classes included."""
    found: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith("shoal")]):
        source = textwrap.dedent(inspect.getsource(base))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        lines = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                found[node.target.id] = " ".join(lines[at] for at in span if at in lines)
    return found


def rows(kind: Any, prefix: str = "") -> Iterator[str]:
    """A table of a struct's fields: name, type, default, comment."""
    said = comments(kind)
    yield "| name | type | default | |\n|---|---|---|---|"
    for field in msgspec.structs.fields(kind):
        default = "" if field.required else f"`{default_of(field)}`"
        cells = (f"`{prefix}{field.name}`", f"`{named(field.type)}`", default, said.get(field.name, ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def default_of(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return str(msgspec.json.encode(value), "utf8") if not isinstance(value, float) else repr(value)


def named(kind: Any) -> str:
    return str(kind).replace("typing.", "") if hasattr(kind, "__args__") else kind.__name__


def first_line(thing: Any, before: str = "") -> str:
    """The first paragraph of its docstring, as lines of at most 100 columns."""
    text = before + (inspect.getdoc(thing) or "").partition("\n\n")[0]
    indent = "  " if before else ""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def commands(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=96, max_content_width=96)
    yield f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for one in command.list_commands(context):
            if inner := command.get_command(context, one):
                yield from commands(inner, f"{name} {one}")


def cli() -> Iterator[str]:
    yield f"# Commands\n\n{NOTE}\n\n`shoal COMMAND --help` prints these.\n"
    yield from commands(program, "shoal")


def job_file() -> Iterator[str]:
    yield f"# The job file\n\n{NOTE}\n"
    yield "A job is a TOML file (`shoal train job.toml`), `--set NAME=VALUE`, or `settings=` from Python.\n"
    plain = [field.name for field in msgspec.structs.fields(job.Job) if not tables(field)]
    yield "## Top level\n"
    yield "\n".join(row for row in rows(job.Job) if row.split("`")[1:2] in ([], *([name] for name in plain))) + "\n"
    for field in msgspec.structs.fields(job.Job):
        for kind in tables(field):
            tag = kind.__struct_config__.tag
            yield f"## [{field.name}]{f', {tag}' if tag else ''}\n\n{first_line(kind)}\n"
            yield "\n".join(rows(kind, f"{field.name}.")) + "\n"


def tables(field: Any) -> list[Any]:
    return job._kinds_of(field.name)


def event_page() -> Iterator[str]:
    yield f"# Events\n\n{NOTE}\n\nA run writes one JSON object a line to `events.jsonl`; `event` says which it is.\n"
    for kind in events.Happening.__subclasses__():
        yield f"## {kind.__struct_config__.tag}\n\n{first_line(kind)}\n"
        yield "\n".join(rows(kind)) + "\n"


def python() -> Iterator[str]:
    yield f"# Python\n\n{NOTE}\n\n`import shoal` gives these names; `help(shoal.NAME)` says more.\n"
    for name in sorted(shoal.__all__):
        yield first_line(getattr(shoal, name), f"- `shoal.{name}`: ")


PAGES = {"cli.md": cli, "job-file.md": job_file, "events.md": event_page, "python.md": python}

if __name__ == "__main__":
    folder = Path(*sys.argv[1:2] or [FOLDER])
    for page, lines in PAGES.items():
        (folder / page).write_text("\n".join(lines()).rstrip() + "\n")
