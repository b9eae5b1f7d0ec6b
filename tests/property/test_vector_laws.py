"""Laws of vector clocks, and of range clocks against one clock per key (S1-17 to S1-19)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shoal.keys import KeyRange
from shoal.store.server.vector_clock import (
    GONE,
    Node,
    RangeClocks,
    VectorClock,
)

NODES = (1, 2, 3, 4)
SPAN = 24

clocks = st.builds(VectorClock, st.dictionaries(st.sampled_from(NODES), st.integers(0, 4)))
nodes = st.sampled_from(NODES)
ranges = st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(lambda ends: KeyRange(min(ends), max(ends)))
# A node has an event of its own, or sends a message to another node, which receives it at once or
# later.
histories = st.lists(st.tuples(nodes, nodes, st.booleans()), max_size=24)
tasks = st.lists(st.tuples(st.integers(1, 4), st.none() | ranges), max_size=30)


@given(clocks, clocks, clocks)
def test_before_is_a_strict_order(a: VectorClock, b: VectorClock, c: VectorClock) -> None:
    assert not a.before(a)
    assert not (a.before(b) and b.before(a))
    if a.before(b) and b.before(c):
        assert a.before(c)


@given(clocks, clocks)
def test_two_events_are_before_after_concurrent_or_the_same(a: VectorClock, b: VectorClock) -> None:
    assert [a.before(b), b.before(a), a.concurrent(b), a == b].count(True) == 1
    assert a.concurrent(b) == b.concurrent(a)


@given(clocks, clocks, nodes)
def test_what_is_received_happened_before(a: VectorClock, b: VectorClock, node: int) -> None:
    after = a.receive(node, b)
    assert a.before(after)
    assert b <= after
    assert after <= a.joined(b).local(node)  # and it knows nothing else


@given(clocks, clocks, clocks)
def test_joining_is_the_least_that_knows_both(a: VectorClock, b: VectorClock, c: VectorClock) -> None:
    both = a.joined(b)
    assert a <= both and b <= both
    assert both == b.joined(a) == both.joined(a)
    if a <= c and b <= c:
        assert both <= c


@given(histories)
def test_clocks_say_exactly_what_led_to_what(history: list[tuple[int, int, bool]]) -> None:
    """The order of the clocks is the causal order, found here by walking the history."""
    now = {node: VectorClock() for node in NODES}
    last: dict[int, int] = {}  # the last event of each node
    events: list[tuple[VectorClock, frozenset[int]]] = []  # each with all its causes
    on_the_way: list[tuple[int, int]] = []

    def happened(node: int, clock: VectorClock, *causes: int) -> None:
        now[node] = clock
        led = {*causes, *([last[node]] if node in last else [])}
        events.append((clock, frozenset(led.union(*(events[one][1] for one in led)))))
        last[node] = len(events) - 1

    for node, other, sends in history:
        if not sends:
            happened(node, now[node].local(node))
        else:
            happened(node, now[node].send(node))
            on_the_way.append((other, last[node]))
        if len(on_the_way) > 2:  # Receivers have events of their own before a message arrives
            receiver, sent = on_the_way.pop(0)
            happened(receiver, now[receiver].receive(receiver, events[sent][0]), sent)
    for i, (one, _) in enumerate(events):
        for j, (two, led) in enumerate(events):
            assert one.before(two) == (i in led), (i, j)


def kept_per_key(done: list[tuple[int, KeyRange | None]]) -> list[dict[Node, int]]:
    """The plain way: one clock for every key."""
    kept: list[dict[Node, int]] = [{} for _ in range(SPAN)]
    for node, keys in done:
        for key in range(SPAN) if keys is None else range(keys.start, keys.stop):
            kept[key][node] = kept[key].get(node, 0) + 1
    return kept


def per_key(ranged: RangeClocks, keys: KeyRange | None = None) -> list[VectorClock]:
    return [clock for part, clock in ranged.read(keys) for _ in range(part.start, part.stop)]


@given(tasks, ranges)
def test_range_clocks_are_the_clocks_of_their_keys(done: list[tuple[int, KeyRange | None]], asked: KeyRange) -> None:
    ranged = RangeClocks(SPAN)
    for node, keys in done:
        before = len(ranged)
        ranged.tick(node, keys)
        assert len(ranged) <= before + 2  # one range is split into at most three
    kept = [VectorClock(counts) for counts in kept_per_key(done)]
    assert per_key(ranged) == kept
    assert per_key(ranged, asked) == kept[asked.start : asked.stop]
    found = ranged.read()
    assert all(one[1] != two[1] for one, two in pairwise(found))  # as few ranges as possible
    assert len(ranged) == len(found) <= 2 * len({keys for _, keys in done if keys is not None}) + 1


@given(tasks, st.integers(1, 6))
def test_with_few_ranges_a_clock_never_says_less_than_happened(
    done: list[tuple[int, KeyRange | None]], most: int
) -> None:
    ranged = RangeClocks(SPAN, most)
    for node, keys in done:
        ranged.tick(node, keys)
    assert len(ranged) <= most
    exact = [VectorClock(counts) for counts in kept_per_key(done)]
    assert all(true <= said for true, said in zip(exact, per_key(ranged), strict=True))
    if not ranged.widened:
        assert per_key(ranged) == exact


@given(tasks, st.lists(st.integers(1, 4), max_size=4), tasks)
def test_retiring_nodes_changes_only_under_whose_name_they_count(
    done: list[tuple[int, KeyRange | None]], retired: list[int], later: list[tuple[int, KeyRange | None]]
) -> None:
    ranged = RangeClocks(SPAN)
    kept = kept_per_key(done)
    for node, keys in done:
        ranged.tick(node, keys)
    for node in retired:
        ranged.retire(node)
    later = [(node, keys) for node, keys in later if node not in retired]
    for node, keys in later:
        ranged.tick(node, keys)
    for counts, more in zip(kept, kept_per_key(later), strict=True):
        for node in retired:
            counts[GONE] = counts.get(GONE, 0) + counts.pop(node, 0)
        for name, count in more.items():
            counts[name] = counts.get(name, 0) + count
    assert per_key(ranged) == [VectorClock(counts) for counts in kept]


@given(tasks, ranges, clocks)
def test_a_clock_that_is_written_is_read_back(
    done: list[tuple[int, KeyRange | None]], keys: KeyRange, clock: VectorClock
) -> None:
    ranged = RangeClocks(SPAN)
    for node, part in done:
        ranged.tick(node, part)
    kept = [VectorClock(counts) for counts in kept_per_key(done)]
    ranged.write(keys, clock)
    kept[keys.start : keys.stop] = [clock] * (keys.stop - keys.start)
    assert per_key(ranged) == kept
