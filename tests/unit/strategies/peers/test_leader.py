"""The leader decides from its log alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from shoal.data.slots import Slots
from shoal.limits import SECOND
from shoal.schedule.intervals import Intervals, count
from shoal.schedule.stop_rules import StopRules
from shoal.strategies.peers.leader import Leader, PeerFacts
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.run_log import RunLog
from shoal.timing import DEFAULT
from shoal.wire.effects import Store
from shoal.wire.messages import peers as p

START = p.EvaluationDone(0, 0.0, 0.0, 0, 0, 1.0, {}, None, 2, True, [1.0, 1.0, 0.0, None], "a")


class Told:
    """A leader that receives its own messages, and its mesh."""

    leads, may_begin_to_lead, is_met, timing = "a", True, True, DEFAULT

    def __init__(self, stop: StopRules, *, evaluate: int = 100, every: int = 8, log: RunLog | None = None) -> None:
        facts = PeerFacts(Slots(100, 1, 0), stop, evaluate, every)
        self.me = p.Peer("a", "a", 0, "")
        self.log = log or RunLog()
        if log is None:
            self.log.apply("a", START)
        self.closed: set[str] = set()
        self.names, self.gone = ["a", "b"], list[str]()
        self.lead = Leader(cast(Mesh, self), facts, lambda weights: (0.0, {}), self.log)
        self.lead.set_clock(0, 0.0)
        self.lead.leads = True

    @property
    def living(self) -> list[p.Peer]:
        return [p.Peer(name, name, number, "") for number, name in enumerate(self.names)]

    def is_closed(self, life: str) -> bool:
        return life in self.closed

    def look(self, seconds: float = 1.0) -> list[p.Word]:
        words = self.lead.decide(round(seconds * SECOND), True)
        for word in words:
            self.log.apply("a", word)
        return words

    @property
    def is_due(self) -> bool:
        return self.lead.is_evaluation_due(SECOND)

    def learn(self, life: str, slots: int, took: int = 1_000) -> None:
        runs = Intervals(self.log.out[life]).pop(slots)
        self.log.apply(life, p.Learned(list(runs), count(runs), 0.0, [took * count(runs)]))

    def begin_evaluation(self) -> int:
        log = self.log
        (effect,) = self.lead.evaluate(SECOND, np.zeros(1, np.float32), log.done, log.rows, log.loss)
        assert isinstance(effect, Store)
        return effect.token

    def evaluate(self, loss: float) -> p.EvaluationDone:
        (word,) = self.lead.evaluated(2 * SECOND, self.begin_evaluation(), (loss, {}), None)
        assert isinstance(word, p.EvaluationDone)
        self.log.apply("a", word)
        return word


def dealt(words: Sequence[p.Word]) -> dict[str, int]:
    return {life: count(runs) for word in words if isinstance(word, p.SlotsDealt) for life, runs in word.slots}


def test_nothing_is_dealt_before_the_first_weights_are_judged() -> None:
    told = Told(StopRules(epochs=5), log=RunLog())
    assert told.look() == [] and told.is_due
    assert told.evaluate(0.7).number == 0
    assert dealt(told.look()) == {"a": 16, "b": 16}


def test_everybody_has_work_ahead_by_its_own_pace() -> None:
    told = Told(StopRules(epochs=1_000), evaluate=1 << 60)
    told.look()
    told.learn("a", 16, took=1_000)  # microseconds per slot: a thousand slots a second
    told.learn("b", 16, took=10_000)
    assert dealt(told.look()) == {"a": 1_000, "b": 100}
    assert told.look() == [], "both have what they need"


def test_everybody_has_work_also_when_more_is_to_be_told_at_once_than_there_is() -> None:
    told = Told(StopRules(epochs=1_000), every=1 << 30)
    assert dealt(told.look()) == {"a": 100, "b": 100}


def test_the_end_is_dealt_in_smaller_and_smaller_pieces_and_never_more_than_there_is() -> None:
    told = Told(StopRules(epochs=3), evaluate=1 << 60)
    sizes: list[int] = []
    while (words := told.look()) and not any(isinstance(word, p.Halt) for word in words):
        sizes += list(dealt(words).values())
        for life in told.names:
            if told.log.left(life):
                told.learn(life, told.log.left(life))
    assert told.log.done == 300 == told.log.next
    assert sum(sizes) == 300 and sizes[-1] < sizes[2]


def test_nothing_is_dealt_past_the_evaluation_after_the_one_that_is_judged() -> None:
    told = Told(StopRules(epochs=50), evaluate=20)
    for _ in range(30):
        told.look()
        for life in told.names:
            if life in told.log.out:
                told.learn(life, told.log.left(life))
    assert told.log.next == 40 and told.is_due
    told.begin_evaluation()
    assert not told.is_due, "one at a time"
    assert sum(dealt(told.look()).values()) > 0, "it is dealt on while that is judged"


def test_slots_of_one_that_is_gone_are_dealt_again_when_it_is_closed_and_not_before() -> None:
    told = Told(StopRules(epochs=1), evaluate=1 << 60)
    told.look()
    told.learn("a", 16)
    told.names, told.gone = ["a"], ["b"]
    first = told.look()
    assert all(word.again == 0 for word in first if isinstance(word, p.SlotsDealt))
    told.learn("a", told.log.left("a"))
    told.closed = {"b"}
    (word,) = told.look()
    assert isinstance(word, p.SlotsDealt) and word.again == 16
    assert word.slots[0][1][0] == (16, 32), "before what is new"


def test_the_next_one_goes_on_from_what_was_said() -> None:
    told = Told(StopRules(epochs=3, patience=2))
    told.look()
    told.learn("a", 10)
    told.evaluate(0.5)
    told.evaluate(0.6)
    after = Told(StopRules(epochs=3, patience=2), log=told.log)
    word = after.evaluate(0.7)
    assert word.number == 3 and not word.best
    after.lead.end("nothing", now=True)  # patience had run out before: that reason stays
    (halt,) = after.look()
    assert halt == p.Halt("no improvement in 2 evaluations", judge=False)


def test_passes_that_were_begun_before_the_last_are_made_whole_before_it_rests() -> None:
    told = Told(StopRules(seconds=5.0), evaluate=1 << 60, every=50)
    told.look(1.0)  # a: 0 to 100, b: 100 to 200
    told.learn("b", 60)
    assert not any(isinstance(word, p.Halt) for word in told.look(6.0)), "a pass is not whole"
    told.learn("a", 100)
    (halt,) = told.look(6.5)
    assert halt == p.Halt("5 seconds are over")
    assert not told.is_due
    for life in told.names:
        told.log.apply(life, p.Rested())
    assert told.look() == [] and told.is_due, "what is unevaluated is judged"
    assert told.evaluate(0.3).done == 160
    assert told.look(7.0) == [p.PeersEnded("5 seconds are over", False, 7.0)]
    assert told.look() == []


def test_all_that_live_must_rest_and_all_that_are_gone_be_closed_before_it_ends() -> None:
    told = Told(StopRules(epochs=5))
    told.lead.end("interrupted", now=True, evaluates=False)
    assert told.look() == [p.Halt("interrupted", judge=False)]
    told.log.apply("a", p.Rested())
    assert told.look() == []
    told.names, told.gone = ["a"], ["b"]
    assert told.look() == []
    told.closed = {"b"}
    assert told.look() == [p.PeersEnded("interrupted", False, 1.0)]


def test_what_was_judged_last_is_judged_again_if_its_weights_are_gone_with_whoever_judged_it() -> None:
    told = Told(StopRules(epochs=5))
    told.lead.end("interrupted", now=True)
    told.look()
    told.log.apply("b", p.Rested())
    assert told.log.last == START and START.by == "a"
    told.names, told.gone, told.closed = ["b"], ["a"], {"a"}
    assert told.look() == [] and told.is_due


def test_a_loss_that_is_not_finite_ends_it_as_failed() -> None:
    told = Told(StopRules(epochs=5))
    word = told.evaluate(math.nan)
    assert word.loss is None
    (halt,) = told.look()
    assert isinstance(halt, p.Halt) and halt.failed and "take a smaller step" in halt.why and not halt.judge


def test_a_model_that_cannot_be_judged_ends_it_as_failed() -> None:
    told = Told(StopRules(epochs=5))
    assert told.lead.evaluated(SECOND, told.begin_evaluation(), None, OSError("no such file")) == []
    (halt,) = told.look()
    assert isinstance(halt, p.Halt) and halt.failed and halt.why == "the model cannot be evaluated: no such file"
