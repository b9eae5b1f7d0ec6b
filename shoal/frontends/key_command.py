"""``shoal key``: who may take part from other machines. One command on each side, and each says what the other side does next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.doors import Wrong

if TYPE_CHECKING:
    from shoal.wire.keyring import Key, Own


class _Place(click.Path):
    """A folder; the empty name of one that a script has not set is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "":
            self.fail("the name of the folder is empty", param, ctx)
        return super().convert(value, param, ctx)


_FOLDER = click.option(
    "--keys",
    "folder",
    metavar="FOLDER",
    type=_Place(file_okay=False, path_type=Path),
    help="Where this host's keys are.  [default: $SHOAL_KEYS, or ~/.config/shoal/keys]",
)


@click.group()
def key() -> None:
    """The keys by which nodes on several machines know each other.

    \b
    On the first machine, which runs the coordinator:
        shoal key new coordinator
    On each other machine; it prints the line to enter on the first:
        shoal key new hostb --role worker
    On the first machine:
        shoal key add worker:hostb:...
        shoal key revoke hostb              from then on it is cut off

    A node that has the key hostb is called hostb, or hostb.SOMETHING. Roles: a worker pushes and pulls; a client also makes tables and lets
    nodes go; a server holds segments; the coordinator's key stands for its whole machine.
    """


@key.command("new")
@click.argument("name")
@click.option("--role", help="coordinator, server, worker or client.  [default: what the name begins with]")
@click.option("--out", type=_Place(file_okay=False, path_type=Path), help="The same as --keys.")
@_FOLDER
def new(name: str, role: str | None, out: Path | None, folder: Path | None) -> None:
    """Make a key pair called NAME: a secret that stays here, and a line for the others."""
    from shoal.wire import keyring

    with _told():
        role = role or next((one for one in keyring.ROLES if name.startswith(one)), None)
        if role is None:
            raise Wrong(f"what is {name} to be? --role {', '.join(keyring.ROLES[:-1])} or {keyring.ROLES[-1]}")
        place = _place(out or folder)
        made = keyring.make(place, name, role)
    click.echo(f"{place / f'{name}.secret'}: the key of {name}, a {role}; it stays on this machine")
    _next_after(made)


def _next_after(made: Own) -> None:
    if made.role == "coordinator":
        click.echo(
            "next, here: shoal launch coordinator --listen tcp://ADDRESS:PORT prints the address to call, which has this key in it"
        )
        click.echo("next, on each other machine: shoal key new NAME --role server|worker|client")
        return
    click.echo("next, on the coordinator's machine:")
    click.echo(f"    shoal key add {made.line}")


@key.command("add")
@click.argument("line", metavar="LINE|FILE")
@_FOLDER
def add(line: str, folder: Path | None) -> None:
    """Let a key in: the line that `shoal key new` printed there, or its NAME.public. Works at once, also while a run goes on."""
    from shoal.wire import keyring

    with _told():
        given = keyring.parse(_line_of(line))
        place = _place(folder)
        before = keyring.allow(place, given)
    click.echo(f"{given.name} may come in as a {given.role} (the list is {place / keyring.ALLOWED})")
    if before is not None:
        click.echo(f"the key that {given.name} had before was revoked")
    if given.role == "coordinator":
        click.echo("next, here: its plain address (tcp://HOST:PORT) is enough to call it from now on")
    else:
        click.echo(f"next, there: shoal {_doing(given)} --at ADDRESS, with the address that the coordinator prints")


def _doing(given: Key) -> str:
    return {"server": "launch server", "worker": "launch worker"}.get(given.role, "status")


@key.command("revoke")
@click.argument("name")
@_FOLDER
def revoke(name: str, folder: Path | None) -> None:
    """Cut a key off, at once: what it says is not taken any more, and it does not come in again."""
    from shoal.wire import keyring

    with _told():
        gone = keyring.revoke(_place(folder), name)
    click.echo(
        f"the key of {name} ({gone[0].role}) was revoked; to let it in again it needs a new one: shoal key new, there"
    )


@key.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@_FOLDER
def list_keys(as_json: bool, folder: Path | None) -> None:
    """The keys of this machine, and who may call it. Nothing secret is shown."""
    import json

    from shoal.wire import keyring

    with _told():
        place = _place(folder)
        own, (allowed, wrong) = keyring.own_keys(place), keyring.read_list(place)
    if as_json:
        facts = {"folder": str(place), "own": _facts(own), "allowed": _facts(allowed), "wrong": wrong}
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(f"{place}")
    click.echo("own keys:" if own else "no own key yet: shoal key new NAME")
    for one in own:
        click.echo(f"    {one.line}")
    _show_list([one for one in allowed if one.role != keyring.REVOKED], own)
    if gone := [one for one in allowed if one.role == keyring.REVOKED]:
        click.echo("revoked, and never let in again:")
        for other in gone:
            click.echo(f"    {other.name}:{other.public}")
    for text in wrong:
        click.echo(f"not understood: {text}", err=True)


def _show_list(may: list[Key], own: list[Own]) -> None:
    if may:
        click.echo("may call:")
        for one in may:
            click.echo(f"    {one.line}")
    elif own and all(one.role != "coordinator" for one in own):
        click.echo(
            "who may call is said on the coordinator's machine, and it tells the servers: nothing is missing here"
        )
    else:
        click.echo("nobody may call: shoal key add LINE")


def _facts(keys: list[Key] | list[Own]) -> list[dict[str, str]]:
    return [{"role": one.role, "name": one.name, "key": one.public} for one in keys]


def _line_of(given: str) -> str:
    from shoal.errors import Invalid

    if given.count(":") == 2:
        return given
    try:
        with open(given, encoding="utf-8") as file:
            return file.read(4_096)
    except (OSError, UnicodeDecodeError):
        raise Invalid(f"{given[:120]!r} is neither a line ROLE:NAME:KEY nor a file that has one") from None


def _place(folder: Path | None) -> Path:
    from shoal.wire import keyring

    return folder if folder is not None else keyring.default_folder()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    from shoal.errors import Invalid

    try:
        yield
    except Invalid as error:
        raise Wrong(str(error)) from None
