"""Every row is sent exactly once, to the server that holds it.

This holds for any placement and any request.
"""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.keys import KeyRange, Keys
from shoal.limits import FRAME_BYTES
from shoal.store.client.split import Layout
from shoal.tables import Sparse
from shoal.wire.messages import Replicas, TablePlaces

LAWS = settings(max_examples=200, deadline=None)
SPAN = 200


@st.composite
def placements(draw: st.DrawFn) -> TablePlaces:
    starts = [0, *sorted(draw(st.sets(st.integers(1, SPAN - 1), max_size=11)))]
    owners = draw(st.lists(st.sampled_from("abc"), min_size=len(starts), max_size=len(starts)))
    return TablePlaces(1, "w", Sparse(keys=SPAN), starts, [Replicas(1, [owner]) for owner in owners])


KEYS = st.one_of(
    st.sets(st.integers(0, SPAN - 1)).map(lambda keys: np.array(sorted(keys), np.uint64)),
    st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(lambda ends: KeyRange(min(ends), max(ends))),
)


@LAWS
@given(placements(), KEYS, st.booleans(), st.one_of(st.none(), st.integers(1, SPAN)))
def test_every_row_travels_exactly_once(
    placed: TablePlaces, keys: Keys | KeyRange, every_server: bool, most: int | None
) -> None:
    each = np.arange(keys.start, keys.stop, dtype=np.uint64) if isinstance(keys, KeyRange) else keys
    ends = [*placed.starts[1:], SPAN]
    segment_of = np.searchsorted(np.array(placed.starts, np.uint64), each, side="right") - 1
    fullest = max(np.bincount(segment_of), default=0)
    assume(most is None or fullest <= most)  # otherwise the request is refused with an error
    row_bytes = 8 if most is None else FRAME_BYTES // most
    shares = Layout(placed).shares(keys, row_bytes, every_server)

    places = np.arange(len(each))
    taken = [share.take(places).tolist() for share in shares]
    assert sorted(row for rows in taken for row in rows) == places.tolist()
    back = np.full(len(each), -1)
    for share, rows in zip(shares, taken, strict=True):
        assert share.rows == len(rows)
        assert rows == sorted(rows)
        assert share.rows * row_bytes <= FRAME_BYTES
        share.put(np.array(rows, np.int64), back)
        for row in rows:
            segment = int(segment_of[row])
            assert placed.places[segment].servers == [share.server]
            assert share.first <= segment < share.last
            assert share.span[0] <= placed.starts[segment] and ends[segment] <= share.span[1]
    assert back.tolist() == places.tolist()

    owned: dict[str, list[int]] = {}
    for segment, place in enumerate(placed.places):
        owned.setdefault(place.servers[0], []).append(segment)
    for server, segments in owned.items():
        covering = [
            [s for s in segments if share.first <= s < share.last] for share in shares if share.server == server
        ]
        if every_server or any(placed.places[int(s)].servers == [server] for s in segment_of):
            # Each segment is in exactly one message.
            assert sorted(s for one in covering for s in one) == segments
        else:
            assert covering == []
