"""A server knows since which view it has held its segments."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.store.server.table_server import served_segments
from shoal.tables import Dense
from shoal.wire import messages as m


def placed(owners: str, since: Sequence[int], starts: Sequence[int] = (0, 10, 20)) -> m.TablePlaces:
    places = [m.Replicas(at, [owner], since=at) for owner, at in zip(owners, since, strict=True)]
    return m.TablePlaces(1, "w", Dense(rows=30), list(starts), places)


@pytest.mark.parametrize(
    ("then", "now", "since"),
    [
        # Another server's segment moved to a third one.
        (("aab", (1, 1, 1)), ("aac", (1, 1, 4)), 1),
        (("aab", (1, 1, 1)), ("acb", (1, 4, 1)), 4),  # one of ours moved away
        (("aab", (1, 1, 1)), ("aaa", (1, 1, 4)), 4),  # we got one more
        (("aab", (1, 1, 1)), ("aab", (1, 5, 1)), 5),  # one was elsewhere in between
        (("bbb", (1, 2, 3)), ("cbb", (4, 2, 3)), 3),  # we hold none, as before
        (("aab", (1, 1, 1)), ("acc", (1, 4, 6)), 4),
    ],
)
def test_only_what_changes_here_counts(
    then: tuple[str, Sequence[int]], now: tuple[str, Sequence[int]], since: int
) -> None:
    assert served_segments("a", placed(*now), served_segments("a", placed(*then), None)).since == since


def test_where_nothing_is_known_of_before_or_all_is_split_anew_any_change_counts() -> None:
    assert served_segments("a", placed("abb", (1, 2, 3)), None).since == 3
    before = served_segments("a", placed("abb", (1, 1, 1)), None)
    assert served_segments("a", placed("abb", (4, 4, 4), (0, 5, 20)), before).since == 4
