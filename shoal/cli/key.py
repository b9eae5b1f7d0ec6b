"""``shoal key``: manages the keys of other machines; each command prints the next step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.common import CommandError, Decorator, SuggestingGroup, as_json, option, print_json

if TYPE_CHECKING:
    from shoal.security.keyring import OwnKey, PublicKey


def _place(ctx: click.Context, param: click.Parameter, value: str | None) -> Path:
    from shoal.security import keyring

    if value == "":  # of an unset variable
        raise click.BadParameter("the name of the folder is empty")
    return keyring.default_folder() if value is None else Path(value)


def _keys(*names: str) -> Decorator:
    return option(
        *names,
        "place",
        metavar="FOLDER",
        type=click.Path(file_okay=False),
        callback=_place,
        help="Where this host's keys are.  [default: $SHOAL_KEYS, or ~/.config/shoal/keys]",
    )


@click.group(cls=SuggestingGroup)
def key() -> None:
    """The keys by which nodes on several machines know each other.

    \b
    On the first machine, which runs the coordinator:
        shoal key new coordinator
    On each other machine; it prints the line to enter on the first:
        shoal key new hostb --role worker
    On the first machine:
        shoal key add worker:hostb:...
        shoal key add worker:hostb:... --group b --until 30d
        shoal key revoke hostb              from then on it is cut off

    A node that has the key hostb is called hostb, or hostb.SOMETHING. Roles: a worker pushes and
    pulls; a client also makes tables and lets nodes go; a server holds segments; the coordinator's
    key stands for its whole machine. A worker's or client's key that is confined to a group takes
    part in that group alone, and is called GROUP/hostb.SOMETHING there.
    """


@key.command("new", short_help="Make a key pair for this host.")
@click.argument("name")
@option("--role", help="coordinator, server, worker or client.  [default: what the name begins with]")
@_keys("--keys", "--out")
def new(name: str, role: str | None, place: Path) -> None:
    """Make a key pair called NAME: a secret that stays here, and a line for the others."""
    from shoal.security import keyring

    role = role or next((one for one in keyring.ROLES if name.startswith(one)), None)
    if role is None:
        raise CommandError(f"what is {name} to be? --role {', '.join(keyring.ROLES[:-1])} or {keyring.ROLES[-1]}")
    made = keyring.make(place, name, role)
    click.echo(f"{place / f'{name}.secret'}: the key of {name}, a {role}; it stays on this machine")
    if role == "coordinator":
        click.echo("next, here: shoal launch coordinator --listen tcp://ADDRESS:PORT prints the address to use")
        click.echo("next, on each other machine: shoal key new NAME --role server|worker|client")
    else:
        click.echo(f"next, on the coordinator's machine:\n    shoal key add {made.line}")


@key.command("add", short_help="Allow a key to connect.")
@click.argument("line", metavar="LINE|FILE")
@option(
    "--group",
    metavar="GROUP",
    help="Confine it to this group of workers; cluster: to none.  [default: as before; at first to none]",
)
@option(
    "--until",
    metavar="TIME",
    help="When it expires: at the end of 2026-12-31, at 2026-12-31T18:00 (both UTC), after 30d or 12h, or never.  [default: as before; at first never]",
)
@_keys("--keys")
def add(line: str, group: str | None, until: str | None, place: Path) -> None:
    """Let a key in: the line that `shoal key new` printed there, or its NAME.public.
    Works at once, also while a run goes on.

    A key that is there already stays bound as it is, but for what is said now. It expires by the
    clock of the coordinator's machine, and of each server's.
    """
    from shoal.security import expiry, keyring
    from shoal.wire.messages.groups import CLUSTER

    given = keyring.parse(_line_of(line))
    end = None if until is None else expiry.moment(until, expiry.now())
    if end is not None and 0 < end <= expiry.now():
        raise CommandError(f"--until {until} is over: shoal key revoke {given.name} cuts it off")
    if group == "":  # an unset variable of a script must not remove a bound
        raise CommandError(f"--group is empty: name a group, or {CLUSTER} for none")
    if end and any(one.public == given.public for one in keyring.own_keys(place)):
        raise CommandError(f"--until {until}: {given.name} is this host's own key, which does not expire here")
    before = keyring.allow(place, given, "" if group == CLUSTER else group, end)
    added = next(one for one in keyring.read_list(place)[0] if one.public == given.public)
    click.echo(f"{given.name} may come in as a {given.role}{_bounds(added)} (the list is {place / keyring.ALLOWED})")
    if before is not None:
        click.echo(f"the key that {given.name} had before was revoked")
    if given.role == "coordinator":
        click.echo("next, here: its plain address (tcp://HOST:PORT) is enough to call it from now on")
    elif added.group:
        click.echo(f"next, there: shoal.connect(ADDRESS, group={added.group!r}), with the coordinator's ADDRESS;")
        click.echo(f"    shoal train DATA --servers-at ADDRESS --group {added.group} needs a client's key of that name")
    else:
        launched = given.role in ("server", "worker")
        command = f"launch {given.role} --at ADDRESS" if launched else "status ADDRESS"
        click.echo(f"next, there: shoal {command}, with the address that the coordinator prints")


def _bounds(one: PublicKey) -> str:
    from shoal.security import expiry

    group = f" of group {one.group} alone" if one.group else ""
    return group + (f" until {expiry.written(one.until)}" if one.until else "")


@key.command("revoke", short_help="Cut a key off at once.")
@click.argument("name")
@_keys("--keys")
def revoke(name: str, place: Path) -> None:
    """Cut a key off, at once: what it says is not taken any more, and it does not come in again."""
    from shoal.security import keyring

    gone = keyring.revoke(place, name)
    click.echo(f"the key of {name} ({gone[0].role}) was revoked; to be let in again it needs a new one (shoal key new)")


@key.command("list", short_help="List the keys of this host and those that may connect.")
@as_json()
@_keys("--keys")
def list_keys(as_json: bool, place: Path) -> None:
    """The keys of this machine, and who may call it. Nothing secret is shown."""
    from shoal.security import keyring

    own, (allowed, wrong) = keyring.own_keys(place), keyring.read_list(place)
    if as_json:
        facts = {"folder": click.format_filename(place), "own": _facts(own), "allowed": _facts(allowed), "wrong": wrong}
        print_json(facts)
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


def _show_list(may: list[PublicKey], own: list[OwnKey]) -> None:
    from shoal.security import expiry

    if may:
        click.echo("may call:")
        for one in may:
            over = 0 < one.until <= expiry.now()
            click.echo(f"    {one.line}{' (expired: it is refused)' if over else ''}")
    elif own and all(one.role != "coordinator" for one in own):
        click.echo("the coordinator's host says who may call, and tells the servers: nothing is missing here")
    else:
        click.echo("nobody may call: shoal key add LINE")


def _facts(keys: list[PublicKey] | list[OwnKey]) -> list[dict[str, str | bool | None]]:
    from shoal.security import expiry

    return [
        {
            "role": one.role,
            "name": one.name,
            "key": one.public,
            "group": one.group or None,
            "until": expiry.written(one.until) if one.until else None,
            "expired": 0 < one.until <= expiry.now(),
        }
        for one in keys
    ]


def _line_of(given: str) -> str:
    from shoal.errors import Invalid
    from shoal.security import keyring

    if given.count(":") >= 2 and given.split(":")[0] in (*keyring.ROLES, keyring.REVOKED):
        return given
    try:
        with open(given, encoding="utf-8", opener=keyring.plain_file) as file:
            return file.read(4_096)
    except (OSError, UnicodeDecodeError):
        raise Invalid(f"{given[:120]!r} is neither a line ROLE:NAME:KEY nor a file that has one") from None
