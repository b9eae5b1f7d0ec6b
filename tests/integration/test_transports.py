"""One suite over every transport: what a client can request, and how it is refused."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import shoal
from shoal import limits
from shoal.errors import BadKeys, BadValues, Closed, DependencyFailed, Invalid, StartFailed, TimedOut, UnknownTable
from shoal.launch.processes import ProcessCluster
from shoal.tables import Update
from tests.support import PATIENCE

TRANSPORTS = ["threads", "ipc", "tcp"]
RULES = """
import shoal

@shoal.update(state=1, step=0.1, decay=0.9)
def momentum_of_the_test(weight, state, gradient, settings):
    velocity = settings.decay * state[0] + gradient
    return weight - settings.step * velocity, (velocity,)
"""
_names = (f"table {number}" for number in itertools.count())


def start(place: str, servers: int = 2, modules: tuple[str, ...] = ()) -> shoal.Cluster:
    if place == "threads":
        return shoal.local(servers=servers, modules=modules)
    return shoal.local(servers=servers, processes=True, transport=place, modules=modules)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Provide a module with a user's own update."""
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules_of_the_test.py").write_text(RULES)
    sys.path.insert(0, str(folder))
    yield "rules_of_the_test"
    sys.path.remove(str(folder))


@pytest.fixture(scope="module", params=TRANSPORTS)
def cluster(request: pytest.FixtureRequest, rules: str) -> Iterator[shoal.Cluster]:
    with start(request.param, modules=(rules,)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kv(cluster: shoal.Cluster) -> shoal.KV:
    return cluster.client()


@pytest.fixture
def w(kv: shoal.KV) -> Iterator[str]:
    """Create a sparse table of a thousand keys that adds up what is pushed."""
    name = next(_names)
    kv.create(name, shoal.Sparse(keys=1_000))
    yield name
    kv.drop(name)


# ---------------------------------------------------------------- push and pull


def test_what_is_pushed_is_pulled_in_the_order_of_the_keys_asked_for(kv: shoal.KV, w: str) -> None:
    kv.push(w, [1, 500, 999], [1.0, 2.0, 3.0]).result(PATIENCE)
    assert list(kv.pull(w, [999, 1, 0, 500, 1]).result(PATIENCE)) == [3.0, 1.0, 0.0, 2.0, 1.0]


def test_values_under_the_same_key_add_up(kv: shoal.KV, w: str) -> None:
    got = kv.push_pull(w, [700, 3, 700, 3, 5], [1.0, 2.0, 4.0, 8.0, 16.0]).result(PATIENCE)
    assert list(got) == [5.0, 10.0, 5.0, 10.0, 16.0]  # one answer for each key that was given


def test_keys_and_values_may_be_lists_arrays_or_single_numbers(kv: shoal.KV, w: str) -> None:
    kv.push(w, 7, 1.0).result(PATIENCE)
    kv.push(w, np.array([7, 8], np.int32), np.array([1, 1], np.float64)).result(PATIENCE)
    kv.push(w, (7,), (1,)).result(PATIENCE)
    assert list(kv.pull(w, np.array([7, 8], np.uint64)).result(PATIENCE)) == [3.0, 1.0]
    assert kv.pull(w, []).result(PATIENCE).shape == (0,)
    kv.push(w, [], []).result(PATIENCE)


def test_a_range_of_a_sparse_table_brings_its_live_keys(kv: shoal.KV, w: str) -> None:
    kv.push(w, [900, 10, 11], [3.0, 1.0, 2.0]).result(PATIENCE)
    live = kv.pull(w, slice(0, 1_000)).result(PATIENCE)
    assert (live.keys.tolist(), live.values.tolist()) == ([10, 11, 900], [1.0, 2.0, 3.0])
    live = kv.pull(w, shoal.KeyRange(11, 900)).result(PATIENCE)
    assert (live.keys.tolist(), live.values.tolist()) == ([11], [2.0])


def test_a_range_of_a_dense_table_brings_all_its_rows(kv: shoal.KV) -> None:
    name = next(_names)
    kv.create(name, shoal.Dense(rows=50, width=3))
    kv.push(name, range(10, 40), np.arange(90).reshape(30, 3)).result(PATIENCE)
    kv.push(name, [49, 10], [[1, 1, 1], [2, 2, 2]]).result(PATIENCE)
    rows = kv.pull(name, slice(0, 50)).result(PATIENCE)
    expected = np.zeros((50, 3))
    expected[10:40] = np.arange(90).reshape(30, 3)
    expected[49] += 1
    expected[10] += 2
    assert (rows == expected).all()
    assert (kv.pull(name, slice(39, 41)).result(PATIENCE) == expected[39:41]).all()
    assert kv.push_pull(name, slice(0, 2), np.ones((2, 3))).result(PATIENCE).tolist() == [[1] * 3] * 2
    kv.drop(name)


def test_what_was_pulled_is_the_callers_own(kv: shoal.KV) -> None:
    name = next(_names)
    kv.create(name, shoal.Dense(rows=1))  # one row is on one server, and arrives as it is
    mine = kv.pull(name, [0]).result(PATIENCE)
    mine += 5
    assert kv.pull(name, [0]).result(PATIENCE) == [0.0]
    kv.drop(name)


def test_a_hashed_table_takes_any_id_and_gives_the_ids_back(kv: shoal.KV) -> None:
    name = next(_names)
    kv.create(name, shoal.Sparse(hashed=True, width=2, initial=shoal.Constant(1.0)))
    ids = [2**63 - 1, 0, 12_345_678_901_234_567, 5]
    kv.push(name, ids, [[i, -i] for i in range(4)]).result(PATIENCE)
    got = kv.pull(name, [5, 77, 2**63 - 1]).result(PATIENCE)
    assert got.tolist() == [[4, -2], [1, 1], [1, 1]]
    live = kv.pull(name, shoal.KeyRange(0, limits.KEY_LIMIT)).result(PATIENCE)
    assert live.keys.tolist() == sorted(ids)
    with pytest.raises(BadKeys, match="no order"):
        kv.pull(name, slice(0, 10))
    kv.drop(name)


def test_initial_values_follow_from_the_key_and_the_seed_alone(kv: shoal.KV) -> None:
    values = []
    for spec in (
        shoal.Sparse(keys=1_000, initial=shoal.Normal(seed=3)),
        shoal.Dense(rows=1_000, initial=shoal.Normal(seed=3)),
    ):
        name = next(_names)
        kv.create(name, spec)
        values.append(kv.pull(name, np.arange(0, 1_000, 7)).result(PATIENCE))
        kv.drop(name)
    assert values[0].tobytes() == values[1].tobytes()
    assert 0.005 < values[0].std() < 0.02


# ---------------------------------------------------------------- tasks


def test_tasks_follow_those_they_name(kv: shoal.KV, w: str) -> None:
    pushes: list[shoal.Task] = []
    for _ in range(20):
        pushes.append(kv.push(w, [1, 600], [1.0, 1.0], after=pushes[-1:]))
    assert list(kv.pull(w, [1, 600], after=pushes).result(PATIENCE)) == [20.0, 20.0]


def test_wait_waits_for_all_and_raises_the_first_error(kv: shoal.KV) -> None:
    name = next(_names)
    kv.create(name, shoal.Dense(rows=4, apply=shoal.Step(slots=2), max_delay=0))
    held = kv.push(name, [0], [1.0], slot=(0, 0))
    with pytest.raises(TimedOut, match="slots 1 of step 0"):
        kv.wait([held], 0.3)
    other = kv.push(name, [0], [1.0], slot=(0, 1))
    kv.wait([held, other], PATIENCE)
    assert held.done and held.error is None
    held = kv.push(name, [0], [1.0], slot=(0, 2))
    # Never sent: the push that it follows waits for this slot.
    follows = kv.push(name, [0], [1.0], slot=(0, 3), after=[held])
    kv.drop(name)
    with pytest.raises(UnknownTable):
        kv.wait([held, follows], PATIENCE)
    with pytest.raises(DependencyFailed, match="was dropped"):
        follows.result(PATIENCE)


def test_many_tasks_at_once_are_all_counted(kv: shoal.KV, w: str) -> None:
    kv.wait([kv.push(w, [number % 7, 990], [1.0, 1.0]) for number in range(700)], PATIENCE)
    assert list(kv.pull(w, [*range(7), 990]).result(PATIENCE)) == [100.0] * 7 + [700.0]


def test_several_threads_may_share_one_client(kv: shoal.KV, w: str) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for i in range(40):
                got = kv.push_pull(w, [number, 500 + number], [1.0, 1.0]).result(PATIENCE)
                assert list(got) == [i + 1, i + 1]
                kv.pull(w, [999]).result(PATIENCE)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert errors == []
    assert list(kv.pull(w, [*range(6), *range(500, 506)]).result(PATIENCE)) == [40.0] * 12


def test_a_task_goes_on_while_nobody_waits_for_it(kv: shoal.KV, w: str) -> None:
    task = kv.push(w, [1], [1.0])
    deadline = time.monotonic() + PATIENCE
    while not task.done and time.monotonic() < deadline:
        time.sleep(0.005)  # the user computes
    assert task.done
    assert task.error is None


# ---------------------------------------------------------------- tables


def test_a_table_that_is_created_again_is_empty_again(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    name = next(_names)
    with cluster.client() as other:
        for _ in range(3):
            kv.create(name, shoal.Sparse(keys=10))
            assert name in other.tables()  # it has seen the new table
            assert list(other.push_pull(name, [1, 9], [1.0, 2.0]).result(PATIENCE)) == [1.0, 2.0]
            kv.drop(name)
        with pytest.raises(UnknownTable):
            other.pull(name, [1]).result(PATIENCE)


def test_everyone_sees_the_tables(cluster: shoal.Cluster, kv: shoal.KV, w: str) -> None:
    with cluster.client() as other:
        assert other.tables()[w] == shoal.Sparse(keys=1_000)
        assert other.tables().keys() == kv.tables().keys()


def test_stats_add_up_over_the_servers(kv: shoal.KV, w: str) -> None:
    for _ in range(5):
        kv.push(w, [1, 999], [1.0, 1.0]).result(PATIENCE)
    kv.pull(w, [1, 2, 3]).result(PATIENCE)
    stats = kv.stats(w)
    assert stats["rows"] == 2
    assert set(stats["servers"]) == {"server-0", "server-1"}
    assert stats["counted"] == sum(facts.get("counted", 0) for facts in stats["servers"].values())


def test_stats_tell_the_bytes_that_servers_sent_and_received(kv: shoal.KV, w: str) -> None:
    before, keys = kv.stats(w), np.arange(1_000)
    kv.push(w, keys, np.ones(1_000)).result(PATIENCE)
    pushed = kv.stats(w)
    kv.pull(w, keys).result(PATIENCE)
    pulled = kv.stats(w)
    assert pushed["received"] - before["received"] >= 12_000  # keys and values
    assert pulled["sent"] - pushed["sent"] >= 4_000
    assert pulled["sent"] == sum(facts["sent"] for facts in pulled["servers"].values())


# ---------------------------------------------------------------- invalid requests


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([1_000], "its keys are 0 to 999"),
        ([-1], "negative"),
        ([2**63], "past the limit"),
        ([0.5], "whole numbers"),
        ([[1, 2]], "one dimension"),
        (["a"], "whole numbers"),
        (slice(0, 1_001), "its keys are 0 to 999"),
        (slice(5, 2), "start <= stop"),
        (range(0, 10, 2), "step 1"),
    ],
)
def test_bad_keys_are_refused_where_the_call_is_made(kv: shoal.KV, w: str, keys: object, message: str) -> None:
    with pytest.raises(BadKeys, match=message):
        kv.pull(w, keys)
    with pytest.raises(BadKeys, match=message):
        kv.push(w, keys, [1.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "shape"),
        ([[1.0, 2.0]], "shape"),
        ([1.0, np.nan], "row 1"),
        ([np.inf, 1.0], "row 0"),
        ([1.0, 1e300], "row 1"),
        (["a", "b"], "numbers are needed"),
        ([1j, 2j], "numbers are needed"),
        ([None, 1.0], "numbers are needed"),
    ],
)
def test_bad_values_are_refused_where_the_call_is_made(kv: shoal.KV, w: str, values: object, message: str) -> None:
    with pytest.raises(BadValues, match=message):
        kv.push(w, [1, 2], values)
    assert list(kv.pull(w, [1, 2]).result(PATIENCE)) == [0.0, 0.0]


def test_an_unknown_table_is_named_with_those_there_are(kv: shoal.KV, w: str) -> None:
    for call in (lambda: kv.pull("nope", [1]), lambda: kv.push("nope", [1], [1.0]), lambda: kv.stats("nope")):
        with pytest.raises(UnknownTable, match=f"'nope'.*{w}"):
            call()
    with pytest.raises(Invalid, match="no table 'nope'"):
        kv.drop("nope")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (shoal.Sparse(), "keys=N"),
        (shoal.Sparse(keys=10, hashed=True), "one of the two"),
        (shoal.Dense(rows=0), "rows=0"),
        (shoal.Dense(rows=1, width=0), "width=0"),
        (shoal.Dense(rows=1, max_delay=-1), "max_delay=-1"),
        (shoal.Dense(rows=1, apply=shoal.Step(slots=0)), "slots=0"),
        (shoal.Dense(rows=1 << 45), "start more"),  # more rows than two servers can number
        (shoal.Dense(rows=1 << 20, width=limits.WIDTH, update=Update("nope")), "'nope'"),
        (shoal.Dense(rows=1, update=Update("sgd", {"stepp": 1.0})), "did you mean 'step'"),
        (shoal.Dense(rows=1, update=Update("sgd", {"step": float("nan")})), "finite"),
        (shoal.Dense(rows=1, initial=shoal.Constant(float("inf"))), "finite"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_a_table_that_cannot_be_is_refused_and_the_name_stays_free(
    kv: shoal.KV, spec: shoal.Dense, message: str
) -> None:
    name = next(_names)
    with pytest.raises(Invalid, match=message):
        kv.create(name, spec)
    kv.create(name, shoal.Dense(rows=1))
    assert kv.push_pull(name, [0], [1.0]).result(PATIENCE) == [1.0]
    kv.drop(name)


def test_a_table_too_large_for_memory_is_refused_and_the_cluster_goes_on() -> None:
    """The process and its server may use 6 GB each, so any machine refuses the table."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
import shoal
with shoal.local(servers=1, processes=True) as cluster:
    kv = cluster.client()
    try:
        kv.create("w", shoal.Dense(rows=1 << 31))
    except shoal.ShoalError as error:
        print(type(error).__name__, error)
    kv.create("w", shoal.Dense(rows=10))
    print(kv.push_pull("w", [1], [1.0]).result(30))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines() == ["Invalid server-0 has no memory for its part of table 'w'", "[1.]"], ran.stderr


def test_a_name_is_taken_once(kv: shoal.KV, w: str) -> None:
    with pytest.raises(Invalid, match="exists already"):
        kv.create(w, shoal.Dense(rows=1))
    for bad in ("", "x" * 200, "a\nb"):
        with pytest.raises(Invalid, match="printable"):
            kv.create(bad, shoal.Dense(rows=1))


def test_slots_and_steps_are_asked_for_where_they_belong(kv: shoal.KV, w: str) -> None:
    name = next(_names)
    kv.create(name, shoal.Dense(rows=2, apply=shoal.Step(slots=2, slots_per_pass=4), max_delay=0))
    for call, message in (
        (lambda: kv.push(name, [0], [1.0]), "name the slot"),
        (lambda: kv.push(name, [0], [1.0], slot=(0, 4)), "has 4 slots"),
        (lambda: kv.push(name, [0], [1.0], slot=(-1, 0)), "needs 0 to"),
        (lambda: kv.pull(w, [0], slot=(0, 0)), "has no steps"),
        (lambda: kv.push(w, [0], [1.0], step=1), "only a worker"),
        (lambda: kv.push(w, [0], [1.0], slot=(0, -1)), "needs 0 to"),
    ):
        with pytest.raises(Invalid, match=message):
            call()
    kv.drop(name)


# ---------------------------------------------------------------- large pushes


def test_a_push_too_large_for_one_message_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on threads, where client and servers share the lowered limit."""
    monkeypatch.setattr("shoal.store.client.split.FRAME_BYTES", 256)
    monkeypatch.setattr("shoal.limits.FRAME_BYTES", 256)
    with start("threads") as cluster:
        kv = cluster.client()
        kv.create("dense", shoal.Dense(rows=400, width=2))
        kv.create("sparse", shoal.Sparse(keys=400))
        values = np.arange(400, dtype=np.float32).reshape(200, 2)
        for keys in (slice(100, 300), np.arange(100, 300)):
            kv.push("dense", keys, values).result(PATIENCE)
        assert (kv.pull("dense", slice(100, 300)).result(PATIENCE) == 2 * values).all()
        assert (kv.pull("dense", np.arange(299, 99, -1)).result(PATIENCE) == 2 * values[::-1]).all()
        got = kv.push_pull("sparse", np.arange(0, 400, 2), np.arange(200)).result(PATIENCE)
        assert list(got) == list(range(200))
        live = kv.pull("sparse", slice(0, 400)).result(PATIENCE)  # long responses come in pieces
        assert live.keys.tolist() == list(range(0, 400, 2))
        assert live.values.tolist() == list(range(200))
        assert kv.stats("sparse")["counted"] > 2  # it took more than one message to each server


def test_more_rows_for_one_segment_than_a_message_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.store.client.split.FRAME_BYTES", 64)
    with start("threads", servers=1) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=800))
        with pytest.raises(BadValues, match="fewer keys at a time"):
            kv.push("w", slice(0, 800), np.ones(800)).result(PATIENCE)
        assert not kv.pull("w", [0, 799]).result(PATIENCE).any()


def test_megabytes_arrive_whole(kv: shoal.KV) -> None:
    name = next(_names)
    kv.create(name, shoal.Dense(rows=1 << 20, width=4))
    values = np.random.default_rng(1).normal(size=(1 << 20, 4)).astype(np.float32)
    kv.push(name, slice(0, 1 << 20), values).result(PATIENCE)
    assert kv.pull(name, slice(0, 1 << 20)).result(PATIENCE).tobytes() == values.tobytes()
    kv.drop(name)


# ---------------------------------------------------------------- many clients, closing


def test_many_clients_share_one_table(cluster: shoal.Cluster, kv: shoal.KV, w: str) -> None:
    clients = [cluster.client() for _ in range(16)]
    kv.wait([client.push(w, [number, 999], [1.0, 1.0]) for client in clients for number in range(10)], PATIENCE)
    assert list(kv.pull(w, [*range(10), 999]).result(PATIENCE)) == [16.0] * 10 + [160.0]
    for client in clients:
        client.close()


def test_a_client_closed_while_it_waits_says_so(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    name = next(_names)
    kv.create(name, shoal.Dense(rows=1, apply=shoal.Step(slots=2), max_delay=0))
    other = cluster.client()
    push = other.push(name, [0], [1.0], slot=(0, 0))
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            push.result(PATIENCE)
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    other.close()
    other.close()  # closing twice is fine
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert [type(error) for error in ended] == [Closed] * 3
    with pytest.raises(Closed):
        other.pull(name, [0])
    kv.drop(name)


def test_a_client_is_closed_at_the_end_of_its_block(cluster: shoal.Cluster, w: str) -> None:
    with cluster.client() as other:
        other.push(w, [1], [1.0]).result(PATIENCE)
    with pytest.raises(Closed):
        other.push(w, [1], [1.0])


# ---------------------------------------------------------------- users' own updates


def test_an_update_of_the_users_own_runs_on_the_servers(kv: shoal.KV, rules: str) -> None:
    momentum = __import__(rules).momentum_of_the_test
    name = next(_names)
    kv.create(name, shoal.Sparse(keys=100, update=momentum(step=0.5)))
    weight = velocity = 0.0
    for gradient in (1.0, 2.0, -1.0):
        velocity = float(np.float32(0.9 * velocity + gradient))
        weight = float(np.float32(weight - 0.5 * velocity))
        assert kv.push_pull(name, [42], [gradient]).result(PATIENCE) == pytest.approx([weight])
    kv.drop(name)


@pytest.mark.parametrize("place", ["ipc"])
def test_a_module_that_cannot_be_imported_ends_the_start(place: str) -> None:
    with pytest.raises((Invalid, StartFailed), match=r"no_such_module_at_all.*modules="):
        start(place, modules=("no_such_module_at_all",))


def test_an_update_that_the_servers_do_not_know_is_refused_with_the_way_to_name_it(rules: str) -> None:
    """Servers are separate processes, so this process has the rule and they do not."""
    momentum = __import__(rules).momentum_of_the_test
    with start("ipc", servers=1) as cluster:
        kv = cluster.client()
        with pytest.raises(Invalid, match=r"no update 'momentum_of_the_test'.*modules") as refused:
            kv.create("w", shoal.Dense(rows=1, update=momentum()))
        assert "server-0" in str(refused.value)


# ---------------------------------------------------------------- clusters


def test_a_cluster_of_processes_is_reached_by_its_address(cluster: shoal.Cluster, kv: shoal.KV, w: str) -> None:
    if not isinstance(cluster, ProcessCluster):
        with pytest.raises(Invalid, match="processes=True"):
            _ = cluster.address
        return
    with shoal.connect(cluster.address, name="visitor") as visitor:
        visitor.push(w, [3], [1.0]).result(PATIENCE)
    assert kv.pull(w, [3]).result(PATIENCE) == [1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"servers": 0}, "servers=0"), ({"servers": 10_000}, "servers=10000"), ({"transport": "udp"}, "'ipc' or 'tcp'")],
)
def test_a_cluster_that_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        shoal.local(processes=True, **settings)  # type: ignore[arg-type]


def test_only_this_machine_can_be_reached() -> None:
    with pytest.raises(Invalid, match="can be reached from other machines"):
        shoal.connect("tcp://192.0.2.1:5555")


def test_a_closed_cluster_says_so() -> None:
    with start("threads", servers=1) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=1))
    for call in (cluster.client, cluster.worker, lambda: kv.pull("w", [0])):
        with pytest.raises(shoal.ShoalError, match="closed"):
            call()
    cluster.close()  # closing twice is fine
