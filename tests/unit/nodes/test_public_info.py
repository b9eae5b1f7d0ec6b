"""The coordinator answers nodes that are not members."""

from __future__ import annotations

from typing import Any

from shoal import limits
from shoal.events import Evaluated, Joined, Progress, Warned
from shoal.nodes.coordinator import PublicInfo
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Tell


class Run:
    """The part of a scheduler that is used here."""

    ended = False

    def warn(self, what: str) -> list[Effect]:
        return [Tell(Warned(seconds=0.0, what=what))]


def fed(public_info: PublicInfo, after: int) -> m.Fed:
    (effect,) = public_info.answer("ann", m.Feed(1, after), None)
    assert isinstance(effect, Send) and isinstance(effect.message, m.Fed)
    return effect.message


def joined(number: int) -> Tell:
    return Tell(Joined(seconds=0.0, name=f"worker-{number}", role="worker"))


def test_whoever_asks_is_told_what_the_run_is_about_and_whether_it_is_over() -> None:
    public_info, run = PublicInfo(m.Described(0, "data = 'x'", "x", 5)), Run()
    scheduler: Any = run
    assert public_info.answer("ann", m.Describe(7), scheduler) == [Send("ann", m.Described(7, "data = 'x'", "x", 5))]
    run.ended = True
    (answer,) = public_info.answer("ann", m.Describe(8), scheduler)
    assert isinstance(answer, Send) and isinstance(answer.message, m.Described) and answer.message.ended


def test_what_happened_is_told_once_to_each_who_asks_and_not_what_happens_all_the_time() -> None:
    public_info = PublicInfo()
    progress = Progress(seconds=0.0, passes=1.0, steps=1, examples=1, train_loss=None, workers=1)
    public_info.record([joined(0), Tell(progress), joined(1)])
    first = fed(public_info, 0)
    assert [event.name for event in first.events if isinstance(event, Joined)] == ["worker-0", "worker-1"]
    assert fed(public_info, first.number).events == []
    public_info.record([joined(2)])
    assert len(fed(public_info, first.number).events) == 1
    # Its number is from another process of the coordinator.
    assert len(fed(public_info, 1_000).events) == 3


def test_only_so_much_is_remembered_and_an_evaluation_without_its_workers() -> None:
    public_info = PublicInfo()
    public_info.record([joined(number) for number in range(3 * limits.FEED)])
    assert len(fed(public_info, 0).events) == limits.FEED
    judged = Evaluated(
        seconds=0.0, number=1, passes=1.0, steps=1, examples=1, train_loss=None, test_loss=0.5, metrics={}, workers=1, best=True,
        each={"worker-0": {"slots": 1}},
    )  # fmt: skip
    public_info.record([Tell(judged)])
    last = fed(public_info, 0).events[-1]
    assert isinstance(last, Evaluated) and last.each == {}


def test_who_cannot_take_part_is_told_of_so_many_times_and_no_more() -> None:
    public_info, scheduler = PublicInfo(), Run()
    given: Any = scheduler
    told = [public_info.answer("x", m.Unfit("w" * 500, "y" * 5_000), given) for _ in range(2 * limits.UNFIT)]
    assert sum(map(bool, told)) == limits.UNFIT
    (effect,) = told[0]
    assert isinstance(effect, Tell) and isinstance(effect.event, Warned)
    assert len(effect.event.what) < limits.NAME_CHARS + limits.UNFIT_CHARS + 50
