"""The store benchmark runs, reports what it measured, and leaves nothing behind.

Speed is not tested here.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
from rich.console import Console

from benchmarks.store import Case, Results, Settings, measure, table
from shoal.errors import Invalid
from tests.support.warm_forkserver import offspring

pytestmark = pytest.mark.slow  # other tests cover the measured code

TINY = Settings(
    keys=2_000,
    sizes=(1, 500),
    ranges=(1_000,),
    two_servers=(500,),
    transports=("threads", "tcp"),
    repeat=1,
    seconds=0.0,
)


@pytest.fixture(scope="module")
def results() -> Results:
    before = running()
    lines: list[str] = []
    found = measure(TINY, lines.append)
    assert running() <= before  # its servers and rivals have ended
    assert len(lines) == len(found.cases) + 3  # one for each case and one for each start
    return found


def running() -> set[int]:
    return set(offspring())


def test_every_case_is_there_with_its_rivals(results: Results) -> None:
    cases = {(c.transport, c.servers, c.table, c.operation, c.size): c for c in results.cases}
    both = ("push", "pull")
    for transport in ("threads", "tcp"):
        for operation in both:
            assert {(transport, 1, "sparse", operation, size) for size in (1, 500)} <= set(cases)
            assert (transport, 1, "dense", operation, 1_000) in cases
    assert all(("tcp", 2, "sparse", operation, 500) in cases for operation in both)
    assert len(cases) == len(results.cases) == 2 * 6 + 2
    for case in results.cases:
        rivals = {"memory copy"} if case.transport == "threads" else {"plain store", "echo", "memory copy"}
        assert set(case.ratios) == rivals
        assert set(case.times) == rivals | {"shoal"}


def test_a_case_counts_the_bytes_that_travel(results: Results) -> None:
    def case(table: str, operation: str, size: int) -> Case:
        return next(c for c in results.cases if (c.table, c.operation, c.size) == (table, operation, size))

    push, pull = case("sparse", "push", 500), case("sparse", "pull", 500)
    assert (push.sent, push.received) == (6_000, 0)
    assert (pull.sent, pull.received) == (4_000, 2_000)
    push, pull = case("dense", "push", 1_000), case("dense", "pull", 1_000)
    assert (push.sent, push.received) == (4_000, 0)
    assert (pull.sent, pull.received) == (0, 4_000)


def test_times_and_rates_fit_together(results: Results) -> None:
    for case in results.cases:
        for times in case.times.values():
            assert 0 < times.low <= times.median <= times.high
            assert len(times.batches) == TINY.repeat
            assert times.keys_per_second == pytest.approx(case.size / times.median * 1e6)
            assert times.bytes_per_second == pytest.approx((case.sent + case.received) / times.median * 1e6)
        for rival, ratio in case.ratios.items():
            assert ratio == pytest.approx(case.times[rival].median / case.times["shoal"].median, rel=0.01)


def test_results_survive_json_and_name_no_machine(results: Results) -> None:
    text = msgspec.json.encode(results)
    assert msgspec.json.decode(text, type=Results) == results
    assert results.machine.cores >= 1
    assert results.machine.cpu
    assert {"shoal", "numpy", "numba", "pyzmq", "libzmq"} <= set(results.machine.versions)
    assert b"/" not in msgspec.json.encode(results.machine.versions)


def test_the_table_has_a_row_for_each_case(results: Results) -> None:
    shown = table(results)
    assert shown.row_count == len(results.cases)
    printed = io.StringIO()
    Console(width=200, file=printed).print(shown)
    assert "tcp, 2 servers" in printed.getvalue()


def test_sizes_beyond_the_table_are_refused_before_anything_starts() -> None:
    lines: list[str] = []
    with pytest.raises(Invalid, match="sizes are 1 to 100"):
        measure(Settings(keys=100, sizes=(101,), two_servers=()), lines.append)
    assert lines == []


def test_ctrl_c_ends_everything() -> None:
    code = (
        "from benchmarks.store import Settings, measure\n"
        "say = lambda line: print(line, flush=True)\n"
        "measure(Settings(keys=2_000, sizes=(1,), ranges=(), two_servers=(), transports=('ipc',), repeat=10**6), say)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as bench:
        assert bench.stdout is not None
        assert "starting" in bench.stdout.readline()
        parent = psutil.Process(bench.pid)
        deadline = time.monotonic() + 120
        while len(started := parent.children(recursive=True)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(started) == 3  # our server, the plain store, the echo
        bench.send_signal(signal.SIGINT)
        assert bench.wait(60) != 0
        _, alive = psutil.wait_procs(started, 10)
        assert alive == []
