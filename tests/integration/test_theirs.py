"""Users' code that misbehaves on servers costs its own request and nothing else.

It ends its process, never returns, wants all memory, or raises.

The servers are real processes: their other work continues, and none is restarted.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import shoal
from shoal.errors import BadValues, ShoalError
from shoal.launch.processes import ProcessCluster
from shoal.user_code import is_ready
from tests.support.sandbox import soon

MODULE = """
import os, subprocess, time

import numpy as np
import shoal


def misbehave(how):
    if how == 1:
        os._exit(7)
    while how == 2:
        pass
    if how == 3:
        bytes(1 << 40)
    if how == 4:
        hoard = []
        while True:
            hoard.append(np.ones(1 << 24))
    if how == 5:
        raise RuntimeError("mine")
    if how == 6:
        os.kill(os.getpid(), 11)
    if how == 7 and os.fork() == 0:
        time.sleep(1_800)
        os._exit(0)
    if how == 8:
        subprocess.Popen(["sleep", "1861.5"])


@shoal.question(how=0)
def odd(keys, weights, settings):
    misbehave(settings.how)
    return weights.sum()
"""
WAYS: dict[int, str | tuple[str, ...]] = {
    1: "it ended its process (exit code 7)",
    2: "it took more than 3 s, and was ended",
    3: "MemoryError",
    4: ("MemoryError", "it took more than 3 s"),
    5: "RuntimeError: mine",
    6: "it ended its process (SIGSEGV)",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "odd_code.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with shoal.local(servers=2, copies=2, processes=True, modules=["odd_code"], timing={"question": 3.0}) as one:
            assert isinstance(one, ProcessCluster)
            yield one
        sys.modules.pop("odd_code", None)


@pytest.fixture
def kv(cluster: ProcessCluster) -> Iterator[shoal.KV]:
    """Yield a client with a table of ones, then check that the same servers still work."""
    client, before = cluster.client(), cluster.pids
    client.create("w", shoal.Dense(rows=600))
    client.push("w", slice(None), np.ones(600, np.float32)).result(30)
    yield client
    client.push("w", slice(None), np.ones(600, np.float32)).result(30)
    assert client.pull("w", slice(None)).result(30).min() == 2
    client.drop("w")
    client.close()
    assert cluster.pids == before and not any(cluster.supervisor.restarts.values())


@pytest.mark.variants(slow=["hoard"])
@pytest.mark.parametrize("how", WAYS, ids=["exit", "loop", "huge", "hoard", "raise", "crash"])
def test_a_question_costs_its_own_answer_only(how: int, kv: shoal.KV) -> None:
    import odd_code  # type: ignore[import-not-found]

    assert kv.call("w", slice(None), odd_code.odd).result(60).numbers[0] == 600
    asked = kv.call("w", slice(None), odd_code.odd, how=how)
    if how == 2:  # others are served meanwhile
        kv.pull("w", slice(None)).result(30)
        assert not asked.done
    with pytest.raises(ShoalError) as caught:
        asked.result(60)
    said, ways = str(caught.value), WAYS[how]
    assert "question 'odd'" in said and any(one in said for one in ([ways] if isinstance(ways, str) else ways)), said
    assert kv.call("w", slice(None), odd_code.odd).result(60).numbers[0] == 600


def test_a_question_that_forks_is_answered_all_the_same(kv: shoal.KV) -> None:
    import odd_code

    assert kv.call("w", slice(None), odd_code.odd, how=7).result(60).numbers[0] == 600


def test_what_a_question_started_ends_with_it(kv: shoal.KV) -> None:
    import odd_code

    assert kv.call("w", slice(None), odd_code.odd, how=8).result(60).numbers[0] == 600
    assert soon(lambda: not _runs("sleep", "1861.5"))


def test_a_question_sees_one_moment_and_nobody_waits_for_it(kv: shoal.KV) -> None:
    import odd_code

    # More than are computed at once.
    found = [kv.call("w", slice(None), odd_code.odd) for _ in range(12)]
    assert all(one.result(60).numbers[0] == 600 for one in found)
    assert soon(lambda: kv.call("w", slice(None), "count").result(30) == 600)


RULES = '''
import numpy as np
import os
import shoal


@shoal.update()
def ends(weight, state, gradient, settings):
    os._exit(7)
    return weight, ()


@shoal.update()
def loops(weight, state, gradient, settings):
    while weight < 2:
        gradient += 1
    return weight, ()


@shoal.update()
def loops_far_off(weight, state, gradient, settings):
    while weight > 1e5:
        gradient += 1
    return weight - gradient, ()


@shoal.update()
def hungers(weight, state, gradient, settings):
    return weight + np.ones(1 << 36).sum(), ()


@shoal.update()
def raises(weight, state, gradient, settings):
    return weight + settings.nothing, ()


exec("""
def hidden(weight, state, gradient, settings):
    os._exit(7)
    return weight, ()
""")
hidden = shoal.update()(hidden)  # whose source nobody can read
'''


@pytest.mark.slow
def test_an_update_that_misbehaves_is_refused_and_costs_its_table_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    refused = {
        "ends": "refers to 'os'",
        "loops": "it took more than 5 s, and was ended",
        "loops_far_off": "it took more than 5 s, and was ended",
        "hungers": "",  # numba or numpy has its own message
        "raises": "failed on weight 1",
        "hidden": "it ended its process (exit code 7)",
    }
    with shoal.local(servers=2, copies=2, processes=True, modules=["odd_rules"]) as cluster:
        assert isinstance(cluster, ProcessCluster)
        kv, before = cluster.client(), cluster.pids
        kv.create("w", shoal.Dense(rows=100))
        for name, why in refused.items():
            with pytest.raises(ShoalError) as caught:
                kv.create(name, shoal.Dense(rows=100, update=shoal.tables.Update(name)))
            assert f"update {name!r}" in str(caught.value) and why in str(caught.value), (name, str(caught.value))
            kv.push("w", slice(None), np.ones(100, np.float32)).result(30)
        assert kv.pull("w", slice(None)).result(30).min() == len(refused)
        assert cluster.pids == before and not any(cluster.supervisor.restarts.values())


FILTERS = '''
import os, subprocess

import numpy as np
import shoal
from shoal.filters import Compressor

AT_CLIENT = os.environ.get("TEST_CLIENT") == str(os.getpid())


@shoal.filter(how=0)
class odd_press(Compressor):
    """Presses nothing in fact; at a server it does with a push that is long what it was told to."""

    def press(self, data, item):
        return np.concatenate([data[:-8], data[-8:][::-1]])[:-1] if len(data) > 64 and AT_CLIENT else None

    def release(self, data, item, most):
        if not AT_CLIENT and len(data) > 2_000:
            if self.settings.how == 1:
                os._exit(7)
            if self.settings.how == 2:
                subprocess.Popen(["sleep", "1862.5"])
            while self.settings.how == 2:
                pass
            if self.settings.how == 3:
                np.ones(1 << 40)
            if self.settings.how == 4:
                raise RuntimeError("mine")
        print("what is printed is no answer")
        whole = np.append(data, np.uint8(0))
        return np.concatenate([whole[:-8], whole[-8:][::-1]])
'''
FILTER_WAYS = {1: "it ended its process (exit code 7)", 2: "it took more than 2 s", 3: "", 4: "RuntimeError: mine"}


@pytest.mark.parametrize("how", FILTER_WAYS, ids=["exit", "loop", "memory", "raise"])
def test_a_filter_that_misbehaves_at_a_server_costs_its_own_push_only(
    how: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_filters.py").write_text(FILTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TEST_CLIENT", str(os.getpid()))
    monkeypatch.delitem(sys.modules, "odd_filters", raising=False)
    monkeypatch.setattr("shoal.filters._known", {})
    with shoal.local(servers=1, processes=True, modules=["odd_filters"]) as cluster:
        import odd_filters  # type: ignore[import-not-found]

        assert isinstance(cluster, ProcessCluster)
        kv, before = cluster.client(), cluster.pids
        kv.create("plain", shoal.Dense(rows=100))
        kv.create("w", shoal.Dense(rows=2_000, filters=[odd_filters.odd_press(how=how)]))
        few, many = np.full(100, 1.0, np.float32), np.full(2_000, 1.0, np.float32)
        kv.push("w", slice(0, 100), few).result(60)
        with pytest.raises(BadValues) as caught:
            kv.push("w", slice(None), many).result(60)
        assert "'odd_press'" in str(caught.value) and FILTER_WAYS[how] in str(caught.value), str(caught.value)
        assert soon(lambda: not _runs("sleep", "1862.5"))  # it has ended with the filter's process
        kv.push("plain", slice(None), few).result(60)
        assert soon(lambda: _goes(kv, few), 60)  # the filter's process runs again
        assert kv.pull("w", slice(0, 100)).result(60).min() == 2
        assert kv.pull("plain", slice(None)).result(60).min() == 1
        assert cluster.pids == before and not any(cluster.supervisor.restarts.values())


def _runs(*command: str) -> bool:
    return any(one.info["cmdline"] == list(command) for one in psutil.process_iter(["cmdline"]))


@pytest.mark.slow
def test_a_descriptor_may_have_any_number() -> None:
    """A server with many connections has descriptors that ``select.select`` cannot take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    reads, writes = os.pipe()
    high = fcntl.fcntl(reads, fcntl.F_DUPFD, 2_000)
    try:
        assert not is_ready(high, select.POLLIN, time.monotonic() + 0.01)
        os.write(writes, b"x")
        assert is_ready(high, select.POLLIN, time.monotonic() + 60)
    finally:
        for one in (reads, writes, high):
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _goes(kv: shoal.KV, few: object) -> bool:
    try:
        kv.push("w", slice(0, 100), few).result(60)
    except BadValues:
        return False
    return True
