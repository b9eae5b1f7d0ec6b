"""Laws of segments and placement, for any table and any servers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.cluster.placement import Holders, backup_for, place, segments_of
from shoal.limits import DENSE_SEGMENT_BYTES, KEY_LIMIT
from shoal.tables import Dense, Sparse, Table

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=16, unique=True)
tables = st.integers(0, 255)
segment_counts = st.integers(0, 150)
copy_counts = st.integers(1, 4)
specs: st.SearchStrategy[Table] = st.one_of(
    st.builds(Dense, rows=st.integers(1, 1 << 26), width=st.integers(1, 64)),
    st.builds(Dense, rows=st.integers(1, 1 << 14), width=st.integers(1, 65_536)),
    st.builds(Sparse, keys=st.integers(1, KEY_LIMIT)),
    st.just(Sparse(hashed=True)),
)


def loads(placed: list[Holders], servers: list[str]) -> list[int]:
    primaries = Counter(holders[0] for holders in placed)
    return sorted(primaries[server] for server in servers)


@given(specs, st.integers(1, 16))
def test_segments_cover_every_key_once_and_none_is_empty(spec: Table, servers: int) -> None:
    cut = segments_of(spec, servers)
    assert cut[0].start == 0
    assert cut[-1].stop == spec.span
    assert all(left.stop == right.start for left, right in pairwise(cut))
    sizes = [keys.stop - keys.start for keys in cut]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(specs, st.integers(1, 16))
def test_a_table_is_cut_no_finer_than_it_must_be(spec: Table, servers: int) -> None:
    count = len(segments_of(spec, servers))
    assert count >= min(8 * servers, spec.span)
    if isinstance(spec, Dense):
        largest = -(-spec.rows // count) * spec.width * 4
        assert largest <= DENSE_SEGMENT_BYTES
        if count > 8 * servers:  # one segment less would have exceeded the limit
            assert -(-spec.rows // (count - 1)) * spec.width * 4 > DENSE_SEGMENT_BYTES
    else:
        assert count <= 8 * servers


@given(tables, segment_counts, names, copy_counts)
def test_loads_differ_by_at_most_one_and_copies_are_on_distinct_servers(
    table: int, segments: int, servers: list[str], copies: int
) -> None:
    placed = place(table, segments, servers, copies)
    assert len(placed) == segments
    spread = loads(placed, servers)
    assert spread[-1] - spread[0] <= 1
    assert all(len(holders) == len(frozenset(holders)) == min(copies, len(servers)) for holders in placed)


@given(tables, segment_counts, names, copy_counts)
def test_the_order_of_the_names_does_not_matter(table: int, segments: int, servers: list[str], copies: int) -> None:
    shuffled = sorted(servers, reverse=True)
    assert place(table, segments, shuffled, copies) == place(table, segments, servers, copies)


@given(tables, segment_counts, names, st.integers(1, 3))
def test_more_copies_add_backups_and_change_nothing_else(
    table: int, segments: int, servers: list[str], copies: int
) -> None:
    fewer = place(table, segments, servers, copies)
    more = place(table, segments, servers, copies + 1)
    assert [holders[:copies] for holders in more] == fewer


@given(tables, segment_counts, names, copy_counts)
def test_no_server_backs_up_much_more_than_the_others(
    table: int, segments: int, servers: list[str], copies: int
) -> None:
    # With fewer servers all hold nearly everything, and there is little choice.
    assume(len(servers) >= 3 * (copies - 1))
    placed = place(table, segments, servers, copies)
    for rank in range(1, min(copies, len(servers))):
        held = Counter(holders[rank] for holders in placed)
        assert max(held.values(), default=0) <= -(-3 * segments // (2 * len(servers)))


@given(tables, st.integers(0, 63), names, st.data())
def test_a_new_backup_is_no_holder_and_does_not_depend_on_the_order(
    table: int, segment: int, servers: list[str], data: st.DataObject
) -> None:
    holders = data.draw(st.lists(st.sampled_from(servers), unique=True))
    loads = data.draw(st.dictionaries(st.sampled_from(servers), st.integers(0, 20)))
    found = backup_for(table, segment, servers, holders, loads)
    assert backup_for(table, segment, sorted(servers, reverse=True), holders, loads) == found
    free = [name for name in servers if name not in holders]
    assert (found in free) if free else found == ""
    if found:
        share = -(-(1 + sum(loads.values())) // len(servers))
        given_now = loads.get(found, 0) + 1
        assert given_now <= share or loads.get(found, 0) == min(loads.get(name, 0) for name in free)
