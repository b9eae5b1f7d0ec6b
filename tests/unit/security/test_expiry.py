"""The expiry of a key, in the formats that people write."""

from __future__ import annotations

import pytest

from shoal.errors import Invalid
from shoal.security import expiry
from shoal.security.expiry import moment, written

DAY = 86_400


def test_a_day_is_good_to_its_end_and_a_time_up_to_it() -> None:
    assert written(moment("2026-12-31")) == "2027-01-01T00:00:00Z"
    assert written(moment("2026-12-31T18:00")) == written(moment("2026-12-31T18:00Z")) == "2026-12-31T18:00:00Z"
    assert moment("2026-12-31T18:00:05") == moment("2026-12-31T18:00") + 5


def test_so_long_from_now_is_said_by_people_and_never_by_a_file() -> None:
    assert moment("30d", at=DAY) == 31 * DAY
    assert moment("12h", at=DAY) == DAY + DAY // 2
    with pytest.raises(Invalid, match="is no expiry"):
        moment("30d")


def test_what_is_written_is_read_as_it_was() -> None:
    for until in (1, DAY, expiry.now(), expiry.limits.UNTIL):
        assert moment(written(until)) == until
    assert moment(written(0)) == 0


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "-3d", "3", "3w", "2026-13-01", "2026-02-30", "1969-01-01", "31.12.2026", "9" * 400, "٣d"]
)
def test_what_is_no_time_is_refused_with_times_that_are(text: str) -> None:
    with pytest.raises(Invalid, match="give 2026-12-31"):
        moment(text, at=DAY)
