"""Emulation makes workers slower than the machine does (S3-07)."""

from __future__ import annotations

import pytest

from shoal.emulation import Emulation
from shoal.errors import Invalid
from shoal.job import Job


def test_nobody_is_held_up_unless_it_is_asked_for() -> None:
    assert Emulation().pace(0, seed=1) is None
    assert Emulation().words() == ""
    assert Emulation(factor=5).pace(1, seed=1) is None  # only worker 0 is slow


def test_an_example_takes_what_it_is_said_to_take_and_no_less_than_it_does() -> None:
    pace = Emulation(per_example=0.001).pace(3, seed=0)
    assert pace is not None
    assert pace.extra(rows=100, took=0.02) == pytest.approx(0.08)
    assert pace.extra(rows=100, took=0.3) == 0.0


def test_a_slow_worker_takes_a_multiple_of_what_it_takes() -> None:
    settings = Emulation(slow=[2], factor=5)
    pace = settings.pace(2, seed=0)
    assert pace is not None and pace.extra(rows=10, took=0.01) == pytest.approx(0.04)
    both = Emulation(per_example=0.001, slow=[2], factor=5).pace(2, seed=0)
    assert both is not None and both.extra(rows=10, took=0.002) == pytest.approx(0.048)


def test_pauses_come_as_often_and_last_as_long_as_said() -> None:
    pace = Emulation(pause=0.1, pause_every=0.5).pace(0, seed=7)
    assert pace is not None
    held = [pace.extra(rows=1, took=0.01) for _ in range(20_000)]  # 200 seconds of compute
    pauses = [one for one in held if one]
    assert len(pauses) == pytest.approx(400, rel=0.2)
    assert sum(pauses) / len(pauses) == pytest.approx(0.1, rel=0.2)
    again = Emulation(pause=0.1, pause_every=0.5).pace(0, seed=7)
    assert again is not None and [again.extra(rows=1, took=0.01) for _ in range(20_000)] == held


def test_a_stall_comes_once() -> None:
    pace = Emulation(stall=2.0, stall_at=0.05).pace(0, seed=0)
    assert pace is not None
    assert [round(pace.extra(rows=1, took=0.02), 6) for _ in range(6)] == [0, 0, 2.0, 0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"per_example": 20e-6}, "emulated compute (20 us per example)"),
        ({"factor": 5.0}, "worker-0 5x slower (emulated)"),
        (
            {"per_example": 0.001, "slow": [1, 2], "factor": 2.0, "stall": 3.0, "stall_at": 1.0},
            "emulated compute (1 ms per example), worker-1, worker-2 2x slower and stalled once for 3 s after 1 s",
        ),
        ({"slow": [3, 1, 2], "factor": 2.0}, "worker-1 to worker-3 2x slower (emulated)"),
        ({"pause": 0.05}, "worker-0 pausing 50 ms every 1 s on average (emulated)"),
    ],
)
def test_what_is_emulated_is_said_in_words(settings: dict[str, object], said: str) -> None:
    assert Emulation(**settings).words() == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "setting",
    ["per_example=-1", "factor=0.5", "pause=1e9", "pause_every=0", "slow=[-1]", "stall=-2"],
)
def test_what_cannot_be_is_refused(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(Invalid, match=f"emulate.{name}="):
        Job.of({"data": "clicks", "emulate": {name: eval_of(value)}})


def eval_of(text: str) -> object:
    from shoal.settings_tree import value_of

    return value_of(text)
