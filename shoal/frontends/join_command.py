"""``shoal join`` and ``shoal leave``: one peer more, one less, while a run of peers goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.doors import Wrong

if TYPE_CHECKING:
    from shoal.launch.joining import Joined


@click.command()
@click.argument("where", metavar="RUN|ADDRESS")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the model, the figures and what was heard of the run there, as a run's folder.",
)
@click.option("--quiet", is_flag=True, help="Say nothing but how it ended.")
def join(where: str, out: Path | None, quiet: bool) -> None:
    """Take part in a run of peers that is under way: its folder, or the address of any of its peers.

    \b
    shoal train rcv1 --strategy peer-to-peer --workers 2 --out runs/p2p
    shoal join runs/p2p                 in another terminal
    shoal join tcp://127.0.0.1:40213    the same, by an address

    Ctrl-C leaves in order: what was learned is told first. If all others are gone it goes on alone to the end of the run. Exit code
    1 if the run failed or nobody is there.
    """
    from shoal.errors import Invalid, ShoalError
    from shoal.launch import joining

    if out is not None and out.exists() and any(out.iterdir()):
        raise Wrong(f"{out} is not empty: choose another folder")
    closing, asked = threading.Event(), threading.Event()
    try:
        with _leaving(closing, asked):
            joined = joining.join(
                where, (lambda text: None) if quiet else (lambda text: click.echo(text, err=True)), closing, asked
            )
    except Invalid as error:
        raise Wrong(str(error)) from None
    except ShoalError as error:
        raise click.ClickException(str(error)) from None
    _show(joined, out)
    if joined.failed:
        raise SystemExit(1)


@click.command()
@click.argument("where", metavar="RUN|ADDRESS")
@click.argument("name")
def leave(where: str, name: str) -> None:
    """Ask a peer, such as worker-2, to finish what it is at and leave a run that goes on.

    Exit code 1 if it has not gone in a minute, or nobody is there.
    """
    from shoal.errors import Invalid, ShoalError
    from shoal.launch import joining

    try:
        joining.leave(where, name, lambda text: click.echo(text, err=True))
    except Invalid as error:
        raise Wrong(str(error)) from None
    except ShoalError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name} has left")


def show_peers(where: str, as_json: bool) -> None:
    """How a run of peers stands: who is here, who leads, how far it is."""
    import msgspec

    from shoal.cluster.stopping import ENDLESS
    from shoal.events import counted
    from shoal.launch import joining

    account = joining.standing(where)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_named(account))))
        return
    state = f"over: {account.over}" if account.over else "learning"
    passes = f"{account.done / account.per_pass:.2f}"
    if account.limit < ENDLESS:
        passes += f" of {account.limit / account.per_pass:g}"
    click.echo(f"{counted(len(account.peers), 'peer')}, {passes} passes in {account.seconds:.1f} s, {state}")
    for peer in account.peers:
        click.echo(f"  {peer.name:<12} {peer.address}{'  leads' if peer.life == account.lead else ''}")
    for life, why in account.gone.items():
        click.echo(f"  {life.partition('.')[0]:<12} gone: {why or 'it left'}")
    if account.judged:
        last = account.judged[-1]
        loss = "not finite" if last.loss is None else f"{last.loss:.4f}"
        click.echo(f"test loss {loss} at pass {last.done / account.per_pass:.2f} (evaluation {last.number})")


def _named(value: Any) -> Any:
    """What travels as lists, with the names of its fields."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    return [_named(one) for one in value] if isinstance(value, list) else value


@contextmanager
def _leaving(closing: threading.Event, asked: threading.Event) -> Iterator[None]:
    """The first signal asks it to leave, the second ends it at once."""

    def hear(number: int, frame: object) -> None:
        if asked.is_set():
            closing.set()
            raise KeyboardInterrupt(" at once: what was learned since it told last is lost to the others")
        asked.set()
        click.echo("leaving when what it is at is told (again: at once)", err=True)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, what in before.items():
            signal.signal(number, what)


def _show(joined: Joined, out: Path | None) -> None:
    import msgspec

    from shoal.events import counted

    learned = f"{joined.name} has learned from {counted(joined.slots, 'slot')}"
    if not joined.why:
        click.echo(f"{learned}, and left; the run goes on")
        return
    loss = joined.judged.get("loss")
    click.echo(f"{learned}; the run is over: {joined.why}" + ("" if loss is None else f" (test loss {loss:.4f})"))
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    assert joined.job is not None
    joined.model.save(out / "model.safetensors")
    (out / "job.toml").write_text(joined.job.toml())
    (out / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in joined.events))
    facts = {
        "strategy": "peer-to-peer",
        "joined_as": joined.name,
        "slots_learned": joined.slots,
        "steps": joined.done,
        "test_loss": loss,
        "metrics": joined.judged.get("metrics", {}),
        "seconds": joined.judged.get("now"),
        "stopped_because": joined.why,
        "failed": joined.failed,
    }
    (out / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")
    name = click.format_filename(out)
    click.echo(f"its model and what it heard of the run are in {name}; look at it: shoal report {name}")
