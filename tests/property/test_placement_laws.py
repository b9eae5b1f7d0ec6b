"""Laws of segments and placement, for any table and any servers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.cluster.placement import Holders, backup_for, move, place, segments_of
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
        if count > 8 * servers:  # one segment fewer would have passed the bound
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


@given(tables, segment_counts, names, names, copy_counts)
def test_a_move_moves_as_few_segments_as_can_be(
    table: int, segments: int, before: list[str], after: list[str], copies: int
) -> None:
    old = place(table, segments, before, copies)
    new = move(table, old, after, copies)
    spread = loads(new, after)
    assert spread[-1] - spread[0] <= 1
    assert all(len(holders) == len(frozenset(holders)) == min(copies, len(after)) for holders in new)
    stayed = sum(was[0] == now[0] for was, now in zip(old, new, strict=True))
    floor, extras = divmod(segments, len(after))
    had = Counter(holders[0] for holders in old)
    over = sum(had[server] > floor for server in after)
    assert stayed == sum(min(had[server], floor) for server in after) + min(over, extras)


@given(tables, segment_counts, names, copy_counts)
def test_nothing_moves_while_nobody_comes_or_goes(table: int, segments: int, servers: list[str], copies: int) -> None:
    placed = place(table, segments, servers, copies)
    assert move(table, placed, servers, copies) == placed


@given(tables, segment_counts, names, names, copy_counts)
def test_no_server_backs_up_much_more_than_the_others(
    table: int, segments: int, before: list[str], after: list[str], copies: int
) -> None:
    assume(len(after) >= 3 * (copies - 1))  # where all hold nearly everything there is little to choose
    new = move(table, place(table, segments, before, copies), after, copies)
    for rank in range(1, min(copies, len(after))):
        held = Counter(holders[rank] for holders in new)
        assert max(held.values(), default=0) <= -(-3 * segments // (2 * len(after)))


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


def copied(old: list[Holders], new: list[Holders]) -> int:
    return sum(len(frozenset(now) - frozenset(was)) for was, now in zip(old, new, strict=True))


def least(old: list[Holders], servers: list[str], copies: int) -> int:
    """Copies that any placement must make: those that are gone, or the primaries of who has just come."""
    wanted = min(copies, len(servers))
    missing = sum(max(0, wanted - sum(name in servers for name in holders)) for holders in old)
    newcomers = frozenset(servers) - frozenset(name for holders in old for name in holders)
    return max(missing, len(old) // len(servers) * len(newcomers))


@pytest.mark.slow
def test_a_thousand_changes_copy_little_more_than_they_must(capsys: pytest.CaptureFixture[str]) -> None:
    """Joins and leaves at random, one after another, so that what one change leaves the next one finds."""
    told = []
    for copies in (1, 2, 3):
        draw = Random(copies)
        servers, born = [f"server-{i}" for i in range(6)], 6
        placed = place(copies, 64, servers, copies)
        made = must = uneven = 0
        for _ in range(1_000):
            if len(servers) <= copies or (len(servers) < 16 and draw.random() < 0.5):
                servers, born = [*servers, f"server-{born}"], born + 1
            else:
                gone = draw.choice(servers)
                servers = [name for name in servers if name != gone]
            moved = move(copies, placed, servers, copies)
            made, must = made + copied(placed, moved), must + least(placed, servers, copies)
            spread = loads(moved, servers)
            uneven = max(uneven, spread[-1] - spread[0])
            assert all(len(frozenset(holders)) == min(copies, len(servers)) for holders in moved)
            placed = moved
        assert must <= made <= 1.3 * must
        assert uneven <= 1
        told.append(f"copies={copies}: {made:,} segments copied where {must:,} is the least: {made / must:.3f}")
    with capsys.disabled():
        print("", *told, sep="\n")
