"""A forked process reports in whole lines and watches for a hang-up; nothing is forked here."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.errors import Invalid
from shoal.launch.forkserver import (
    ChildEnded,
    ChildForked,
    ForkOrder,
    ForkserverStarted,
    ModulesRefused,
    Order,
    Report,
    SignalOrder,
)
from shoal.launch.process_main import (
    ProcessFailed,
    ProcessMessage,
    ProcessOrders,
    ProcessRunning,
    end_with,
    prepare,
    say,
    sweep,
)
from tests.support import PATIENCE

ORDERS = ProcessOrders(
    "ann", "worker", "token", "ipc:///a/ann", "ipc:///a/coordinator", "/a", {"job": {"seed": 7}, "rows": []}
)


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # closed by the test
            os.close(end)


@pytest.mark.parametrize("order", [ForkOrder(ORDERS), SignalOrder("ann", 15)], ids=lambda one: type(one).__name__)
def test_an_order_arrives_as_it_was_given(order: ProcessMessage) -> None:
    assert msgspec.json.decode(msgspec.json.encode(order), type=Order) == order


@pytest.mark.parametrize(
    "report",
    [
        ForkserverStarted(),
        ModulesRefused("why"),
        ChildForked("ann", 7),
        ProcessRunning("ann", "tcp://a"),
        ProcessFailed("ann", "why"),
        ChildEnded("ann", -9),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_report_is_one_line_and_arrives_as_it_was_given(report: ProcessMessage) -> None:
    with pipe() as (source, target):
        say(target, report)
        line = os.read(source, 65_536)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert msgspec.json.decode(line, type=Report) == report


@pytest.mark.parametrize("character", ["x", "\n", "\x01", "\U0001f41f", '"'])
def test_a_long_error_is_cut_so_that_its_line_stays_whole_among_others(character: str) -> None:
    with pipe() as (source, target):
        say(target, ProcessFailed("n" * 64, character * 100_000))
        line = os.read(source, 65_536)
    assert len(line) <= select.PIPE_BUF and line.endswith(b"\n")
    assert msgspec.json.decode(line, type=Report).error == character * 500 + "..."


def test_what_nobody_hears_is_no_error() -> None:
    with pipe() as (source, target):
        os.close(source)
        say(target, ProcessRunning("ann"))


def test_the_watch_leaves_the_bytes_alone_and_returns_when_it_is_told_to() -> None:
    """If it took bytes for a hang-up, it would end this process."""
    with pipe() as (orders, top), pipe() as (until, stop):
        os.write(top, b"for the forkserver\n")
        watch = threading.Thread(target=end_with, args=(os.getppid(), orders, "", until))
        watch.start()
        os.close(stop)
        watch.join(PATIENCE)
        assert not watch.is_alive()
        assert os.read(orders, 100) == b"for the forkserver\n"


def test_sweeping_removes_sockets_and_folder_and_does_not_mind_if_they_are_gone(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    (folder / "server-0").touch()
    for _ in range(2):
        sweep(str(folder))
        assert not folder.exists()
    sweep("")  # tcp has no folder of sockets
    assert tmp_path.exists()


def test_preparing_names_the_module_that_cannot_be_imported() -> None:
    with pytest.raises(Invalid, match=r"'no_such_module_at_all'.*modules="):
        prepare(["no_such_module_at_all"])
