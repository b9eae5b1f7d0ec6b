"""The watch page of a cluster fits one page, without wrapped lines."""

from __future__ import annotations

import msgspec
import pytest

from shoal.events import Handed, Leaving
from shoal.inspect.status import ClusterStatus
from shoal.limits import SECOND
from shoal.views.status import WatchedState
from shoal.wire import messages as m


def status(moves: int = 0) -> ClusterStatus:
    members = [m.MemberStatus(f"server-vm-84e{n}", "server", n + 1, 9, SECOND // 5, False, load=1e6) for n in range(3)]
    course = m.RunProgress(50, 100, 10, 50, False, 500, 12.5, 12.5, 1, 1, "", "", False, {}, {})
    checkpoint = "/home/somebody/runs/with-a-long-name-of-a-folder/checkpoints/00000003"
    standing = m.StatusReply(1, 1, 9, 0, 2, members, {"server-9": "silent for 5 s " * 9}, course, checkpoint, {})
    on_the_way = [
        m.Move("weights", n, "server-vm-84e0", f"server-vm-84e{1 + n % 2}", 3 * SECOND, "leaving") for n in range(moves)
    ]
    view = m.View(1, 9, 0, [m.Member(one.name, one.incarnation, one.role, "") for one in members], [])
    return ClusterStatus(msgspec.structs.replace(standing, moves=on_the_way), view)


def handed(at: float, target: str) -> Handed:
    return Handed(
        seconds=at, table="weights", segments=[1, 2], source="server-vm-84e0", target=target, why="leaving", took=1.0, stall=0.02
    )  # fmt: skip


def shown(watching: WatchedState, width: int) -> list[str]:
    return [line.plain for line in watching.page(width)]


@pytest.mark.parametrize("width", [80, 120])
def test_many_moves_are_a_line_and_no_line_is_wrapped(width: int) -> None:
    watching = WatchedState("/home/somebody/runs/with-a-long-name-of-a-folder")
    leaving = Leaving(seconds=12.0, name="server-vm-84e0", role="server", why="operator-1 asked for it")
    events = [leaving, *(handed(12.1 + n / 100, f"server-vm-84e{1 + n % 2}") for n in range(8))]
    news = watching.take(0.0, status(moves=12), events)
    assert len(news) == 3  # that it leaves, what has moved, and what is moving
    assert "16 segments of weights moved (it leaves): 8 from server-vm-84e0 to server-vm-84e1, 8 from" in news[1]
    lines = shown(watching, width)
    assert max(map(len, lines)) <= width
    assert sum("16 segments of weights" in line for line in lines) == 1
    assert not any(line.startswith(("without", "s without", "an answer")) for line in lines)
    assert [line[:60] for line in lines if "on the way:" in line] == [
        f"  6 segments of weights on the way: server-vm-84e0 -> server-vm-84e{n}"[:60] for n in (1, 2)
    ]
    assert any("checkpoint 00000003" in line for line in lines)  # its name, without the folder


@pytest.mark.parametrize("height", [12, 24, 60])
def test_on_a_low_terminal_the_newest_is_seen_and_the_rest_is_counted(height: int) -> None:
    watching = WatchedState("runs/one")
    for n in range(20):
        watching.take(float(n), status(), [Leaving(seconds=float(n), name=f"node-{n}", role="server", why="")])
    lines = [line.plain for line in watching.page(100, height)]
    assert len(lines) < height and "node-19" in lines[-1]
    whole = shown(watching, 100)
    left_out = [line for line in lines if line.startswith(" ... ")]
    assert bool(left_out) == (height < 24)  # dropped lines are always counted
    assert all("more lines" in line for line in left_out) and len(whole) >= len(lines)
    assert "runs/one" in lines[0] and any(line.startswith("epoch ") for line in lines)
