"""Help is short where there are many commands, grouped, and in whole sentences."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from shoal.cli.main import HELP, main


def test_every_command_has_a_group_and_a_short_line_and_train_comes_first() -> None:
    assert list(HELP) == ["Train", "Watch", "Understand", "Break", "Hosts"]
    listed = [command.name for commands in HELP.values() for command in commands]
    assert listed[0] == "train" and sorted(map(str, listed)) == sorted(main.commands)
    shown = CliRunner().invoke(main, ["--help"]).output
    for commands in HELP.values():
        for command, text in commands.items():
            assert len(text) < 55 and text.endswith(".") and f"  {command.name:<8}  {text}" in shown
    assert "..." not in shown.partition("Options:")[2]


def options(group: click.Group) -> Iterator[tuple[str, click.Option]]:
    for name, command in group.commands.items():
        yield from ((name, one) for one in command.params if isinstance(one, click.Option))
        if isinstance(command, click.Group) and name != "bench":
            yield from options(command)


def test_options_are_explained_in_sentences() -> None:
    wrong = []
    for command, option in options(main):
        text = (option.help or "").partition("[default:")[0].strip()
        if text and (text.split()[0] in ("Of", "And", "For", "What") or not text.endswith((".", ")"))):
            wrong.append((command, option.name, text))
    assert wrong == []


def test_every_command_has_a_help_of_its_own() -> None:
    texts = [command.help for command in main.commands.values() if not isinstance(command, click.Group)]
    assert all(texts) and len(set(texts)) == len(texts)
