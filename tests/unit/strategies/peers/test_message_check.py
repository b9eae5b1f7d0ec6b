"""A message that cannot occur in a run is refused on arrival.

Its sender counts as gone.
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.limits import PEER_GONE, PEER_WHY, SECOND
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.run_log import MessageCheck
from shoal.wire.effects import Received, Tick
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays

FIT = MessageCheck(keys=100, slots=50, batch=4, parts=2)
ME, OTHER, THIRD = (p.Peer(f"w{number}", f"worker-{number}", number, f"memory:w{number}") for number in range(3))
JUDGED = p.EvaluationDone(1, 1.0, 1.5, 50, 200, 0.5, {}, None, 2, True, [0.5, 0.5, 0.0, None], "w1")


def change(*keys: int, values: tuple[float, ...] | None = None) -> Arrays:
    return np.array(keys, np.uint64), np.array(values or [1.0] * len(keys), np.float32)


FITS: list[tuple[p.Word, Arrays]] = [
    (p.Learned([], 0, 0.0), change(0, 99)),
    (p.Learned([(0, 2), (49, 50)], 12, 3.0, [5, 6, 7], (8, 9), 3, 4), ()),
    (p.SlotsDealt([("w1", [(0, 50)])], 50), ()),
    (JUDGED, ()),
    (p.Halt("over"), ()),
    (p.Rested(), ()),
    (p.PeerLeaving("", [(3, 4)]), ()),
    (p.OwnersChanged(7, ["w0", "w1"], ["w2"]), ()),
    (p.Yielded(7), ()),
    (p.Owned([(1, {"w0": 5})]), change()),
]
MISFITS: list[tuple[p.Word, Arrays]] = [
    (p.Learned([], 0, 0.0), change(100)),
    (p.Learned([], 0, 0.0), change(1, 2, 3, values=(1.0,))),
    (p.Learned([], 0, 0.0), change(1, values=(float("nan"),))),
    (p.Learned([], 0, 0.0), change(1, values=(float("-inf"),))),
    (p.Learned([(0, 1 << 60)], 1 << 60, 1.0), change()),
    (p.Learned([(9, 8)], 0, 0.0), change()),
    (p.Learned([(0, 1)], 5, 0.0), change()),
    (p.Learned([(0, 1)], 4, float("nan")), change()),
    (p.Learned([(0, 1)], 4, 0.0, [1 << 61] * 3), change()),
    (p.SlotsDealt([("w0", [(40, 51)])]), ()),
    (p.SlotsDealt([], 1 << 60), ()),
    (p.Halt("over"), change(1)),
    (p.EvaluationDone(1 << 60, 1.0, 1.0, 1 << 60, 1, 0.5, {}, None, 2, True, []), ()),
    (p.EvaluationDone(1, 1.0, 1.0, 1, 1, 0.5, {}, None, 2, True, [None] * 3), ()),
    (p.PeerLeaving("", [(0, 1 << 60)]), ()),
    (p.OwnersChanged(1, [], ["w0"]), ()),
    (p.Yielded(1 << 60), ()),
    (p.Owned([(2, {"w0": 5})]), change()),
    (p.Owned([(0, {"w0": 1 << 60})]), change()),
]


@pytest.mark.parametrize("said", FITS, ids=lambda said: type(said[0]).__name__)
def test_what_is_said_in_a_run_fits(said: tuple[p.Word, Arrays]) -> None:
    assert FIT.error_in(*said) == ""


def mesh() -> Mesh:
    found = Mesh(ME, [ME, OTHER, THIRD])
    found.check = FIT
    found.handle(SECOND, Tick())
    return found


@pytest.mark.parametrize("said", MISFITS, ids=lambda said: type(said[0]).__name__)
def test_what_does_not_fit_is_not_heard_and_whoever_said_it_is_held_for_gone(said: tuple[p.Word, Arrays]) -> None:
    word, arrays = said
    here = mesh()
    here.handle(SECOND, Received("w1", p.Relay("w1", 1, word), arrays))
    assert here.broadcast.drain() == [] and here.gone["w1"].startswith("it sent an invalid message: ")


def test_nobody_says_anything_in_our_name_or_before_it_has_a_model() -> None:
    here = mesh()
    word = p.Learned([(0, 1)], 1, 0.0)
    here.handle(SECOND, Received("w1", p.Relay("w0", 1, word)))
    new = p.Peer("w9", "worker-9", 9, "memory:w9")
    here.handle(SECOND, Received("w9", p.Beat(new, {}, [new], {}, filled=False)))
    here.handle(SECOND, Received("w9", p.Relay("w9", 1, p.PeersEnded("forged", False, 1.0))))
    here.handle(SECOND, Received("w9", p.Relay("w1", 1, word)))
    assert here.broadcast.drain() == [] and not here.gone
    here.handle(SECOND, Received("w9", p.Beat(new, {"w9": 1}, [new, ME], {})))  # now it has a model
    here.handle(SECOND, Received("w9", p.Relay("w9", 1, word)))
    assert [one.origin for one in here.broadcast.drain()] == ["w9"]


def test_nobody_is_entered_who_lives_elsewhere_or_has_no_name() -> None:
    here = mesh()
    for life, address in (
        ("x.y", "http://10.0.0.1:80"),
        ("x.y", "tcp://10.0.0.1:80"),
        ("", "memory:"),
        ("x" * 999, "memory:"),
    ):
        stranger = p.Peer(life, "x", 100, address)
        here.handle(SECOND, Received(life, p.Beat(stranger, {}, [stranger], {}, filled=False)))
    assert list(here.members) == ["w1", "w2"]


def test_those_who_are_said_to_be_gone_are_bounded_in_number_and_in_length() -> None:
    here = mesh()
    for number in range(2 * PEER_GONE):
        here.mark_gone(SECOND, f"nobody-{number}", "x" * 15_000)
    here.mark_gone(SECOND, "y" * 15_000, "")
    assert len(here.gone) == PEER_GONE and max(map(len, here.gone.values())) == PEER_WHY
    here.mark_gone(SECOND, "w1", "its process ended")
    assert here.gone["w1"] == "its process ended", "one that is here is always taken out"
