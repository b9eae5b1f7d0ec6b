"""Peers on virtual time: each test is something that must hold without a central server.

Only the peers themselves keep count.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from shoal.limits import MILLISECOND, SECOND
from shoal.schedule.stop_rules import StopRules
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.run_log import AGAIN, RunLog
from shoal.wire.effects import Compute, Computed, Effect, Received, Send, Tick
from shoal.wire.messages import peers as p
from tests.unit.strategies.peers.peers_in_a_world import KEYS, Counting, Peers, weights_of

MODES = pytest.mark.parametrize("owned", [False, True], ids=["all", "owned"])


@MODES
@pytest.mark.parametrize("founders", [1, 2, 5])
def test_all_end_with_the_same_weights_in_which_every_slot_is_once(founders: int, owned: bool) -> None:
    peers = Peers(founders, StopRules(epochs=3), owned=owned)
    peers.until_over()
    peers.check(180)
    learned = [slot for replica in peers.replicas.values() for slot in replica.learned]
    assert sorted(learned) == list(range(180)), "workers draw different rows (lesson 2)"
    assert all(replica.learned for replica in peers.replicas.values())


@MODES
def test_the_first_weights_are_judged_before_anything_changes_them_and_the_last_when_all_is_in(owned: bool) -> None:
    peers = Peers(3, StopRules(epochs=3), owned=owned)
    peers.until_over()
    judged = peers.nodes[peers.lives[0]].log.judged
    assert (judged[0].number, judged[0].done, judged[0].rows, judged[0].train) == (0, 0, 0, None)
    assert [one.number for one in judged] == list(range(len(judged)))
    assert judged[-1].done == judged[-1].rows == 180
    assert not peers.judged[0].any()
    np.testing.assert_array_equal(peers.judged[-1], weights_of(range(180)))
    assert [one.train for one in judged[1:]] == [1.0] * (len(judged) - 1)
    assert all(node.log.judged == judged for node in peers.nodes.values())
    assert {one.by for one in judged} == {peers.lives[0]}, "one judges at a time (S4-14)"


def test_what_is_told_as_judged_is_what_was_judged() -> None:
    peers = Peers(3, StopRules(epochs=4), every=7)
    peers.until_over()
    judged = peers.nodes[peers.lives[0]].log.judged
    for one, weights in zip(judged, peers.judged, strict=True):
        assert weights.sum() == 3 * one.done, "every slot adds 1 to three keys"
        assert one.done == one.rows


@MODES
def test_when_the_one_that_leads_is_killed_the_next_goes_on_where_it_was(owned: bool) -> None:
    peers = Peers(4, StopRules(epochs=6), owned=owned)
    peers.until_done(100)
    first = peers.lives[0]
    peers.kill(first)
    peers.until_over()
    judged = peers.nodes[peers.lives[0]].log.judged
    assert [one.number for one in judged] == list(range(len(judged)))
    assert {one.by for one in judged} == {first, peers.lives[0]}
    assert all(a.now <= b.now for a, b in pairwise(judged)), "no run's clock goes back"
    assert all(node.log.counted.runs == [(0, 360)] for node in peers.nodes.values())
    if not owned:  # with owners the dead peer's contribution may be in some parts and not in others
        peers.check(360)


def test_slots_of_one_that_is_killed_are_dealt_again_and_counted_once() -> None:
    peers = Peers(3, StopRules(epochs=6), every=20)
    peers.until_done(60)
    victim = peers.lives[2]
    had = peers.nodes[victim].log.left(victim)
    peers.kill(victim)
    peers.until_over()
    peers.check(360)
    assert had and peers.nodes[peers.lives[0]].log.counts[AGAIN] > 0


@MODES
def test_a_newcomer_gets_a_model_that_misses_nothing_and_then_it_gets_work(owned: bool) -> None:
    peers = Peers(2, StopRules(epochs=20), owned=owned)
    peers.until_done(150)
    newcomer = peers.join()
    peers.until_over()
    peers.check(1_200)
    assert peers.replicas[newcomer.name].learned


@MODES
def test_one_that_is_asked_to_leave_tells_what_it_learned_and_gives_back_the_rest(owned: bool) -> None:
    peers = Peers(3, StopRules(epochs=12), owned=owned, every=20)
    peers.until_done(200)
    leaver = peers.nodes[peers.lives[0]]  # the leader
    leaver.leave()
    peers.until_over()
    assert leaver.has_left and leaver.may_go and not leaver.why and not leaver.ended
    peers.check(720)
    learned = Counter(slot for replica in peers.replicas.values() for slot in replica.learned)
    assert max(learned.values()) == 1, "what it learned was not learned again"
    other = peers.nodes[peers.lives[1]]
    assert other.mesh.gone == {leaver.name: ""} and other.leads


@MODES
def test_one_that_slept_leaves_when_those_who_went_on_without_it_can_have_called_it(owned: bool) -> None:
    peers = Peers(3, StopRules(epochs=12), owned=owned, every=20)
    peers.until_done(200)
    leaver = peers.nodes[peers.lives[2]]
    dead = leaver.mesh.timing.dead // MILLISECOND
    peers.world.pause(leaver.name, dead // 2 * MILLISECOND + SECOND)
    leaver.leave()
    peers.wait(dead // 2 + 2_000)
    assert leaver.compute.is_idle and not leaver.has_left and not leaver.mesh.evicted
    peers.until_over()
    assert leaver.has_left and not leaver.why
    peers.check(720)


@MODES
def test_one_that_cannot_compute_says_why_and_the_others_leave_it_alone(owned: bool) -> None:
    peers = Peers(3, StopRules(epochs=6), owned=owned)
    broken = peers.lives[1]
    peers.replicas[broken].breaks_at = 20
    peers.until_over()
    assert peers.nodes[broken].has_left and peers.nodes[broken].why == "MemoryError: no room"
    assert peers.nodes[peers.lives[0]].mesh.gone == {broken: "MemoryError: no room"}
    assert peers.nodes[peers.lives[0]].log.done == 360
    sent: list[str] = []
    peers.world.watch(lambda sender, to, said: sent.append(to), p.Relay)
    peers.wait(3_000)
    assert broken not in sent


def test_when_the_last_one_cannot_compute_the_run_ends_and_says_why() -> None:
    peers = Peers(1, StopRules(epochs=6))
    peers.replicas[peers.lives[0]].breaks_at = 20
    peers.until_over()
    ended = peers.nodes[peers.lives[0]].log.ended
    assert ended is not None and ended.failed and ended.why == "MemoryError: no room"


def test_whoever_looks_on_can_end_it_and_what_was_learned_is_judged() -> None:
    peers = Peers(3, StopRules(epochs=1_000))
    peers.until_done(100)
    peers.world.send("home", peers.lives[0], p.StopPeers(1, "interrupted"))
    peers.until_over()
    node = peers.nodes[peers.lives[0]]
    assert node.log.ended is not None and (node.log.ended.why, node.log.ended.failed) == ("interrupted", False)
    assert node.log.last is not None and node.log.last.done == node.log.done < 60_000
    weights = [replica.weights_now for replica in peers.replicas.values()]
    assert all((one == weights[0]).all() for one in weights)


@pytest.mark.parametrize(
    "stop, why",
    [
        (StopRules(seconds=0.5), "0.5 seconds are over"),
        (StopRules(steps=77), "77 steps done"),
        (StopRules(target_loss=0.002), "target loss 0.002 reached"),
    ],
)
def test_it_stops_as_it_is_told_to(stop: StopRules, why: str) -> None:
    peers = Peers(3, stop)
    peers.until_over()
    book = peers.nodes[peers.lives[0]].log
    assert book.ended is not None and book.ended.why == why and not book.ended.failed
    assert book.last is not None
    if stop.steps is not None:
        peers.check(77)
    if stop.seconds is not None:
        assert book.ended.seconds >= 0.5 and book.last.done == book.done, "what is told is what was judged"
    if stop.target_loss is not None:
        assert book.last.loss is not None and book.last.loss <= 0.002
    whole = book.done // 60 * 60
    assert book.counted.within([(0, whole)]) == whole, "passes that were begun before the last are whole"


def test_an_account_says_all_that_whoever_looks_on_needs() -> None:
    peers = Peers(3, StopRules(epochs=6))
    peers.until_done(200)
    gone = peers.lives[2]
    peers.kill(gone)
    peers.until_over()
    answer = ask(peers.nodes[peers.lives[1]], p.Watch(7, 2))[0].message
    assert isinstance(answer, p.PeerStatus)
    assert (answer.request, answer.lead, answer.done, answer.limit, answer.per_pass) == (
        7,
        peers.lives[0],
        360,
        360,
        60,
    )
    assert [one.life for one in answer.peers] == [peers.lives[1], peers.lives[0]] and list(answer.gone) == [gone]
    assert answer.rows == 360 and answer.loss == (360.0, 360) and sum(answer.staleness) == 360
    assert answer.judged[0].number == 2 and answer.judged[-1].done == 360
    assert (answer.ended, answer.failed, answer.over) == (True, False, "6 epochs done")
    assert answer.spent[0] > 0 and answer.seconds == peers.nodes[peers.lives[0]].log.ended.seconds  # type: ignore[union-attr]


def test_the_weights_of_the_last_and_of_the_best_evaluation_are_kept_by_who_judged_them() -> None:
    peers = Peers(2, StopRules(epochs=3))
    peers.until_over()
    lead = peers.nodes[peers.lives[0]]
    last = lead.log.judged[-1].number
    (piece,) = ask(lead, p.Weigh(3, last))
    assert isinstance(piece.message, p.ModelPiece) and (piece.message.piece, piece.message.pieces) == (0, 1)
    np.testing.assert_array_equal(piece.arrays[0], weights_of(range(180)))
    (none,) = ask(lead, p.Weigh(4, 0))
    assert isinstance(none.message, p.ModelPiece) and none.message.pieces == 0


def test_a_copy_of_everything_can_be_had_of_anybody_and_a_run_goes_on_from_it() -> None:
    peers = Peers(2, StopRules(epochs=3))
    peers.until_over()
    node = peers.nodes[peers.lives[1]]
    (compute,) = [
        one
        for one in node.handle(SECOND << 10, Received("home", p.Weigh(9, 0, whole=True)))
        if isinstance(one, Compute)
    ]
    sent = node.handle(SECOND << 10, Computed(compute.token, compute.function()))
    (piece,) = [one for one in sent if isinstance(one, Send) and one.to == "home"]
    assert isinstance(piece.message, p.ModelPiece)

    state = RunLog.unpack(piece.message.state)
    assert state.counted.runs == [(0, 180)] and state.judged and state.seconds > 0

    begin = RunLog(state.counted, state.rows, state.loss, state.seconds, state.judged, next=180)
    again = Peers(3, StopRules(epochs=5), begin=begin)
    for replica in again.replicas.values():
        replica.restore(piece.arrays[0])
    again.until_over()
    again.check(300)
    assert again.nodes[again.lives[0]].log.judged[-1].number > state.judged[-1].number
    assert again.nodes[again.lives[0]].log.ended.seconds > state.seconds  # type: ignore[union-attr]


def test_messages_between_peers_take_as_long_as_they_are_to_be_emulated() -> None:
    peers = Peers(2, StopRules(epochs=1))
    me, other = (peers.nodes[life].mesh.me for life in peers.lives)
    node = PeerNode(Mesh(me, [me, other]), Counting(), peers.facts, lambda weights: (0.0, {}), link=0.2)
    node.handle(SECOND, Tick())
    beat = p.Beat(other, {other.life: 0}, [me, other], {})
    node.handle(2 * SECOND, Received(other.life, beat))
    assert not node.mesh.is_met
    node.handle(2 * SECOND + 199 * MILLISECOND, Tick())
    assert not node.mesh.is_met
    node.handle(2 * SECOND + 200 * MILLISECOND, Tick())
    assert node.mesh.is_met


def test_what_others_change_while_it_learns_is_added_and_told_as_unknown_to_it() -> None:
    peers = Peers(3, StopRules(epochs=6), every=20)
    peers.until_over()
    staleness = peers.nodes[peers.lives[0]].log.staleness
    assert sum(staleness) == 360 and sum(staleness[1:]) > 0


def ask(node: PeerNode, message: p.Watch | p.Weigh) -> list[Send]:
    found: list[Effect] = node.handle(SECOND << 10, Received("home", message))
    return [one for one in found if isinstance(one, Send) and one.to == "home"]


def test_the_keys_of_the_tests_are_those_of_the_weights() -> None:
    assert weights_of([0, 1]).sum() > 0 and len(weights_of([0])) == KEYS
