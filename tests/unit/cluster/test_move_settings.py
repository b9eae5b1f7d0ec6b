"""An operator sets how fast segments may move."""

from __future__ import annotations

import math

import pytest

from shoal import limits
from shoal.cluster.move_settings import MoveSettings
from shoal.errors import Invalid
from shoal.nodes.rebalancer import Rebalancer
from shoal.wire import coding
from shoal.wire import messages as m


@pytest.mark.parametrize("rate", [math.inf, 1e300, 1e14, 200.0, 1e-12])
def test_any_rate_above_zero_can_be_told_to_who_joins(rate: float) -> None:
    told = Rebalancer(MoveSettings(mb_per_second=rate)).moves.rate
    assert 1 <= told <= limits.MOVE_RATE_MOST
    assert coding.encode(m.Welcome("t", 1, m.View(0, 0, 0, [], []), told))


def test_a_rate_is_told_in_bytes() -> None:
    assert MoveSettings().rate == limits.MOVE_RATE
    assert MoveSettings(mb_per_second=1.5).rate == 3 * limits.MB // 2


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_that_is_none_is_refused_with_what_to_give(rate: float) -> None:
    with pytest.raises(Invalid, match=r"needs a number above 0 \(inf: no bound\)"):
        MoveSettings(mb_per_second=rate)
