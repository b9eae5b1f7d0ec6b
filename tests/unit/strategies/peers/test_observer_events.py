"""Each event of a peer run is reported once, whichever peer says it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from shoal.events import Elected, Evaluated, Gone, Joined, Progress, RunEvent
from shoal.job import Job
from shoal.strategies.peers.observer import LEFT, PeerEvents
from shoal.training.tracker import Tracker
from shoal.wire.messages.peers import EvaluationDone, Peer, PeerStatus

PEERS = [Peer(f"worker-{number}.aa", f"worker-{number}", number, "memory:") for number in range(3)]
FIRST = PEERS[0].life


class Story(PeerEvents):
    """Events, and the tracker of the run."""

    def __init__(self, listener: Callable[[RunEvent], None]) -> None:
        job = Job.of({"data": {"source": "clicks", "batch": 10}, "strategy": "peer-to-peer", "workers": 3})
        dataset = cast(Any, SimpleNamespace(train=SimpleNamespace(rows=1_000)))
        self.tracker = Tracker(job, dataset, cast(Any, None), listener)
        super().__init__(self.tracker, listener)

    @property
    def lost(self) -> int:
        return self.tracker.counts["workers lost"]

    def limit(self, why: str, failed: bool) -> int:
        """Returns the number of slots, as it is reported after the end of the run."""
        self.tracker.why, self.tracker.failed = why, failed
        self.tracker.end()
        return self.tracker.course().limit


def story() -> tuple[Story, list[RunEvent]]:
    events: list[RunEvent] = []
    return Story(events.append), events


def account(**changes: Any) -> PeerStatus:
    nothing = PeerStatus(1, FIRST, PEERS, {}, 0, 500, 100, 0, (0.0, 0), 0.0, [0, 0, 0], (0, 0), [], [], {})
    return msgspec.structs.replace(nothing, **changes)


def judged(number: int, by: str = FIRST, **changes: Any) -> EvaluationDone:
    found = EvaluationDone(
        number, number * 1.0, number + 0.5, 10 * number, 100 * number, 0.5, {}, None, 3, True, [], by
    )
    return msgspec.structs.replace(found, **changes)


def test_who_comes_goes_and_leads_is_told_once() -> None:
    told, events = story()
    for _ in range(2):
        told.update(account())
    gone = {FIRST: "silent for 3.0 s", PEERS[2].life: ""}
    for _ in range(2):
        told.update(account(peers=PEERS[1:2], lead=PEERS[1].life, gone=gone, seconds=4.0))
    assert [event.name for event in events if isinstance(event, Joined)] == ["worker-0", "worker-1", "worker-2"]
    assert [(event.name, event.why) for event in events if isinstance(event, Gone)] == [
        ("worker-0", "silent for 3.0 s"),
        ("worker-2", LEFT),
    ]
    elected = [(event.name, event.why) for event in events if isinstance(event, Elected)]
    assert elected == [("worker-0", ""), ("worker-1", "worker-0 is gone: silent for 3.0 s")]
    assert (told.lost, told.living) == (1, ["worker-1"])
    # Its process ended, and the observer was informed.
    told.update(account(peers=[], gone={**gone, PEERS[1].life: LEFT}))
    assert (told.lost, told.living) == (1, [])


def test_one_that_was_silent_and_goes_on_is_told_to_be_back() -> None:
    told, events = story()
    told.update(account())
    # From worker-2, which is soon cut off.
    told.update(account(peers=[PEERS[2], PEERS[1]], gone={FIRST: "silent for 5.1 s"}))
    told.update(account(peers=PEERS[:2], gone={PEERS[2].life: "of the smaller half"}))
    assert [event.name for event in events if isinstance(event, Joined)][3:] == ["worker-0"]
    assert told.living == ["worker-0", "worker-1"]


def test_what_one_says_that_slept_itself_brings_nobody_back() -> None:
    told, events = story()
    told.update(account())
    gone = {FIRST: "silent for 5.1 s", PEERS[1].life: "silent for 5.1 s"}
    told.update(account(peers=PEERS[2:], lead=PEERS[2].life, gone=gone))
    told.update(account())  # from worker-0, which wakes up: it does not know that it is gone
    assert told.living == ["worker-2"] and told.lead == PEERS[2].life
    again = [Peer(f"worker-{number}.bb", f"worker-{number}", number + 3, "memory:") for number in range(2)]
    told.update(account(peers=[PEERS[2], *again], lead=PEERS[2].life, gone=gone))
    assert told.living == ["worker-2", "worker-0", "worker-1"]
    assert [event.name for event in events if isinstance(event, Gone)] == ["worker-0", "worker-1"]
    assert [event.name for event in events if isinstance(event, Joined)][3:] == ["worker-0", "worker-1"]


def test_what_was_seen_of_a_process_is_told_instead_of_what_others_say_of_its_silence() -> None:
    told, events = story()
    told.update(account())
    told.why[FIRST] = "its process ended (killed by signal 9)"
    told.update(account(gone={FIRST: "silent for 3.0 s"}))
    assert [event.why for event in events if isinstance(event, Gone)] == ["its process ended (killed by signal 9)"]


def test_evaluations_are_told_once_and_in_order_whoever_tells_them() -> None:
    told, events = story()
    told.update(account(judged=[judged(0)]))
    assert [one.number for one in told.update(account(judged=[judged(2), judged(1), judged(0)]))] == [1, 2]
    assert told.update(account(judged=[judged(1), judged(2)])) == []
    found = [event for event in events if isinstance(event, Evaluated)]
    assert [(event.number, event.by, event.workers) for event in found] == [(n, "worker-0", 3) for n in range(3)]
    assert told.evaluations == 3


def test_how_far_it_is_never_goes_back() -> None:
    told, events = story()
    told.update(account(done=40, rows=400, loss=(80.0, 400), seconds=1.0, spent=[2_000_000, 0, 0]))
    # From a peer that knows less.
    told.update(account(done=20, rows=200, loss=(50.0, 200), seconds=2.0))
    told.update(account(done=60, rows=600, loss=(100.0, 600), seconds=3.0, spent=[3_500_000, 0, 0]))
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.steps for event in progress] == [40, 60]
    assert [event.train_loss for event in progress] == [0.2, 0.1]
    assert [event.spent["compute"] for event in progress] == [2.0, 1.5]
    course = told.tracker.course()
    assert (course.done, course.limit, course.examples) == (60, 500, 600)


def test_those_that_go_when_it_has_ended_are_not_told_as_gone() -> None:
    told, events = story()
    told.update(account())
    told.update(account(ended=True, over="5 epochs done", gone={PEERS[1].life: ""}, done=500))
    assert not [event for event in events if isinstance(event, Gone)]
    assert told.limit("5 epochs done", False) == 500


def test_a_run_that_ended_short_of_its_passes_is_not_told_as_whole() -> None:
    told, _ = story()
    told.update(account(done=300, ended=True, over="5 epochs done"))
    assert told.limit("5 epochs done", False) == 500
    assert told.limit("no worker is left", True) == 500
    assert told.limit("target loss 0.5 reached", False) == 300, "it was to end there"
