"""Filters are named and described in tables and jobs; wrong ones are refused.

The error says what to do next.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import shoal
from shoal import filters
from shoal.errors import BadValues, Invalid
from shoal.filters.chain import Chain, Flow
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.nodes.scheduler_journal import (
    RunSummary,
    ScheduleState,
    TrafficTotals,
    to_begin_with,
)
from shoal.store.client.client import Client
from shoal.store.client.filtering import checked_chain
from shoal.store.server.segment_state import RequestCheck
from shoal.tables import Filter
from shoal.views import summary_figures
from shoal.wire import coding
from shoal.wire import messages as m

BASE: dict[str, Any] = {"data": {"source": "rcv1-like"}}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: shoal.Significant(-1), "filter 'significant', threshold=-1: needs 0 or more"),
        (lambda: shoal.Significant(float("nan")), "filter 'significant', threshold=nan: needs a finite number"),
        (
            lambda: shoal.Significant(1e300),
            "filter 'significant', threshold=1e+300: nothing would ever be sent; take less",
        ),
        (lambda: shoal.Skip(1.0), "filter 'skip', share=1: nothing would ever be sent; a share below 1 is needed"),
        (lambda: shoal.Skip(1.5), "filter 'skip', share=1.5: needs 0 to 1"),
        (lambda: shoal.TopK(share=2), "filter 'top', share=2: needs 0 to 1"),
        (lambda: shoal.TopK(share=0), "filter 'top' would never send anything: it needs k above 0, or a share above 0"),
        (lambda: shoal.TopK(k=2.5), "filter 'top', k=2.5: needs a whole number"),  # type: ignore[arg-type]
        (lambda: shoal.Int8(steps=128), "filter 'int8', steps=128: needs 1 to 127"),
        (lambda: shoal.Zstd(0), "filter 'zstd', level=0: needs 1 to 19"),
        (lambda: shoal.Zstd(20), "filter 'zstd', level=20: needs 1 to 19"),
        (lambda: shoal.Zstd("3"), "filter 'zstd', level='3': needs a finite number"),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range_are_refused_with_what_is_possible(make: Any, said: str) -> None:
    with pytest.raises(Invalid) as error:
        make()
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["zstdd"], "no filter 'zstdd' here: did you mean 'zstd'?"),
        ([{"name": "zstd", "levle": 3}], "filter 'zstd' has no setting 'levle': did you mean 'level'?"),
        ([{"name": "delta", "x": 3}], "filter 'delta' has no setting 'x' (it has none)"),
        ([{"name": "zstd", "level": "high"}], "filter 'zstd', level='high': needs a finite number"),
        ([{"level": 3}], 'has no name: write {name = "significant", threshold = 1e-4}'),
        (["int8", "float16"], "filters 'int8' and 'float16' both shorten pushes: leave one of them out"),
        (["delta", "delta"], "filter 'delta' is named twice: name it once"),
    ],
)
def test_a_job_refuses_filters_that_cannot_be(named: list[Any], said: str) -> None:
    with pytest.raises(Invalid) as error:
        Job.of({**BASE, "filters": named})
    assert said in str(error.value)


def test_a_table_that_does_not_add_up_has_no_filter_that_sends_the_rest_later() -> None:
    for lossy in (shoal.Significant(), shoal.Skip(), shoal.TopK(), shoal.Int8(), shoal.OneBit()):
        spec = shoal.Dense(rows=9, update=shoal.Assign(), filters=[lossy])
        with pytest.raises(Invalid, match=f"filter '{lossy.name}' sends a part of a push later, and update 'assign'"):
            Client("me").create("t", spec)
        with pytest.raises(Invalid, match="update 'assign' does not add up what is pushed"):
            RequestCheck(spec, [(0, KeyRange(0, 9))])  # as a server does
    fine = [shoal.Float16(), shoal.DeltaKeys(), shoal.LZ4(), shoal.Zstd()]
    assert checked_chain(shoal.Dense(rows=9, update=shoal.Assign(), filters=fine)) is not None
    assert checked_chain(shoal.Dense(rows=9, update=shoal.Assign(), filters=[shoal.Int8(pushes=False)])) is not None


def test_values_are_shortened_in_one_place_only() -> None:
    with pytest.raises(Invalid, match=r"wire='float16' and filter 'int8'.*leave wire out"):
        checked_chain(shoal.Dense(rows=9, wire="float16", filters=[shoal.Int8()]))
    assert checked_chain(shoal.Dense(rows=9, wire="float16", filters=[shoal.DeltaKeys()])) is not None
    both = [shoal.OneBit(), shoal.Float16(pushes=False)]
    # One for pushes, one for pulls.
    assert checked_chain(shoal.Dense(rows=9, filters=both)) is not None


@pytest.mark.parametrize(("make", "module"), [(shoal.LZ4, "lz4.block"), (shoal.Zstd, "zstandard")])
def test_a_package_that_is_missing_is_named_with_how_to_get_it(
    make: Any, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = shoal.Dense(rows=9, filters=[make()])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Invalid, match=r"pip install 'shoal\[compress\]'"):
        make()
    with pytest.raises(Invalid, match=r"pip install 'shoal\[compress\]'"):
        # A server without the package says so when the table is set up.
        RequestCheck(spec, [(0, KeyRange(0, 9))])


def test_a_client_leaves_filters_that_it_does_not_know_to_the_servers() -> None:
    Client("me").create("t", shoal.Dense(rows=9, filters=[Filter("somebody_elses")]))
    with pytest.raises(Invalid, match="name the module of your own one"):
        RequestCheck(shoal.Dense(rows=9, filters=[Filter("somebody_elses")]), [(0, KeyRange(0, 9))])


def test_a_server_takes_no_filtered_message_that_its_table_has_no_filters_for_or_that_announces_too_much() -> None:
    plain = RequestCheck(shoal.Dense(rows=9), [(0, KeyRange(0, 9))])
    pressed = RequestCheck(shoal.Dense(rows=9, filters=[shoal.DeltaKeys()]), [(0, KeyRange(0, 9))])
    pull = m.Pull(1, 0, 1, 0, 1, 0, 0, 0, 0, 9, count=1, filtered=True)
    with pytest.raises(Invalid, match="the table has none"):
        plain.unfiltered(pull, [np.zeros(1, np.uint8)])
    with pytest.raises(Invalid, match="rows in one message"):  # before memory is allocated for them
        pressed.unfiltered(replace(pull, count=1 << 40), [np.zeros(1, np.uint8)])
    header, (array,) = coding.encode(pull), [np.array([5, 1], np.uint8)]
    message, arrays = coding.decode(header, [array.tobytes()])
    # Filtered keys are bytes, whatever type the keys have.
    assert isinstance(message, m.Pull) and arrays[0].dtype == np.uint8
    assert pressed.unfiltered(message, arrays)[0].tolist() == [5]


def test_rounding_by_chance_is_right_on_average_and_rounding_to_the_nearest_is_near() -> None:
    values = np.full((20_000, 1), 0.3, np.float32)
    values[0] = 127.0  # makes the quantization step 1
    by_chance, nearest = (Chain([shoal.Int8(chance=chance)]) for chance in (True, False))
    found = [chain.arrives(*chain.shortened(values, 5), 1) for chain in (by_chance, nearest)]  # type: ignore[call-arg]
    assert found[0][1:].mean() == pytest.approx(0.3, abs=0.02) and set(np.unique(found[0][1:])) == {0.0, 1.0}
    assert not found[1][1:].any()


# ---------------------------------------------------------------- user-defined filters


def test_scales_that_are_not_finite_are_refused_and_weights_that_are_not_travel_as_they_are() -> None:
    chain, rows = Chain([shoal.Int8()]), np.array([[1.0], [np.nan], [np.inf]], np.float32)
    back = chain.opened_answer(chain.answer([rows.reshape(-1)], 1), 3, 1, "float32")
    assert np.array_equal(back[0], rows.reshape(-1), equal_nan=True)
    for scale in (np.nan, np.inf, -np.inf):
        packed = np.concatenate([np.ones(3, np.uint8), np.array([scale], np.float32).view(np.uint8), [np.uint8(0x80)]])
        with pytest.raises(BadValues, match="filter 'int8' cannot restore what came: a scale is not finite"):
            chain.opened_push([packed.astype(np.uint8)], 3, -1, 1, "float32")


def test_a_filter_is_one_class_with_a_name_that_nobody_else_has() -> None:
    class zstd(filters.Compressor):
        pass

    with pytest.raises(Invalid, match="'zstd' is one of shoal's own"):
        filters.filter()(zstd)
    with pytest.raises(Invalid, match="filter 'half' lacks release: implement it"):

        @filters.filter()
        class half(filters.Compressor):
            def press(self, data: Any, item: int) -> Any:
                return data

    with pytest.raises(Invalid, match=r"take a Sparsifier, Quantizer or Compressor of shoal\.filters"):
        filters.filter()(dict)  # type: ignore[arg-type]
    for name in ("_hidden", "lambda"):
        with pytest.raises(Invalid, match="without leading underscore"):
            filters.filter(**{name: 1.0})(type("hiding", (filters.Sparsifier,), {}))


def test_bytes_are_counted_with_keys_only_where_keys_travel() -> None:
    flow = Flow()
    chain = Chain([shoal.Significant(0.5), shoal.TopK(k=2)], flow=flow)
    some = np.array([[1.0], [2.0], [3.0], [0.0]], np.float32)
    # All rows of a range are still sent as a range.
    assert chain.chosen(some[:2], 0, listed=False) is None
    assert flow.by == {"significant": [8, 8, 0, 0], "top": [8, 8, 0, 0]}
    chain.chosen(some, 0, listed=False)
    assert flow.by == {"significant": [24, 44, 0, 0], "top": [44, 32, 0, 0]}


def test_an_answer_of_another_shape_is_refused_by_name() -> None:
    class all_of_them(filters.Sparsifier):
        def choose(self, values: Any, seed: int) -> Any:
            return True

    try:
        made = filters.filter()(all_of_them)
        with pytest.raises(Invalid, match="filter 'all_of_them' answers with shape"):
            Chain([made()]).chosen(np.ones((3, 1), np.float32), 0, listed=True)
    finally:
        filters._known.pop("all_of_them", None)


# ---------------------------------------------------------------- in a job


def test_filters_of_a_job_survive_a_file_and_are_part_of_what_the_run_is() -> None:
    plain = Job.of(BASE)
    job = Job.of({**BASE, "filters": ["int8", {"name": "significant", "threshold": 1e-3}, "delta"]})
    import tomllib

    assert Job.of(tomllib.loads(job.toml())) == job
    # As in --set filters=int8,delta.
    assert Job.of({**BASE, "filters": "int8, delta"}).filters == ["int8", "delta"]
    assert len({plain.identity, job.identity, Job.of({**BASE, "filters": ["int8"]}).identity}) == 3
    assert Job.of({**BASE, "filters": []}).identity == plain.identity


@pytest.mark.parametrize("strategy", ["serial", "averaging", "allreduce", "hogwild"])
def test_a_strategy_that_pushes_nothing_to_servers_has_no_filters(strategy: str) -> None:
    with pytest.raises(Invalid, match="pushes no gradients to servers: leave filters out, or choose sync"):
        Job.of({**BASE, "strategy": strategy, "filters": ["delta"]})


# ---------------------------------------------------------------- reported traffic


def want(who: int, all_of: list[int], left: tuple[float, float]) -> m.Want:
    return m.Want(1, who, 0, sent=5, received=6, filtered={"all": all_of, "delta": [4, 2, 0, 0]}, left=left)


def test_the_coordinator_adds_up_what_workers_say_of_filters_over_all_their_lives() -> None:
    traffic = TrafficTotals()
    traffic.take(want(1, [100, 10, 50, 25], (3.0, 0.5)))
    traffic.take(want(2, [100, 20, 50, 25], (1.0, 0.0)))
    # These are sums, so the latest report replaces the earlier one.
    traffic.take(want(2, [200, 20, 50, 25], (2.0, 0.0)))
    assert traffic.through() == {"all": [300, 30, 100, 50], "delta": [8, 4, 0, 0]}
    assert traffic.remainder() == (5.0, 0.5)
    assert traffic.gone(1) == 3.0 and traffic.remainder() == (2.0, 3.5)
    account = RunSummary(**asdict(traffic))
    # All workers of the first run are gone.
    later = to_begin_with(ScheduleState(account=account)).account
    again = TrafficTotals.of(later)
    assert again.through() == traffic.through() and again.remainder() == (0.0, 5.5)
    assert Counter(again.totals()) == Counter((10, 12))


def test_a_summary_and_its_line_say_how_many_times_fewer_bytes_went() -> None:
    found = summary_figures.filters(
        {"all": [12_000_000, 1_000_000, 4_000_000, 1_000_000], "delta": [8, 1, 0, 0]}, (0.5, 0.25)
    )
    assert found is not None
    assert found["ratio"] == {"to_servers": 12.0, "to_workers": 4.0}
    assert found["bytes"] == {"delta": {"to_servers": [8, 1], "to_workers": [0, 0]}}
    assert found["ratio_of_filters"] == found["ratio"]
    assert summary_figures.line({"filters": found}) == (
        "1.0 MB to servers instead of 12.0 MB (12.0 times fewer), 1.0 MB to workers instead of 4.0 MB (4.0 times fewer); "
        "left for later: 0.5; lost with workers: 0.25"
    )


def test_what_lists_by_number_saved_is_no_filters_doing() -> None:
    found = summary_figures.filters({"all": [12_000_000, 1_000_000, 0, 0], "handles": [9, 1, 0, 8_000_000]}, (0.0, 0.0))
    assert found is not None and found["ratio"]["to_servers"] == 12.0
    assert found["ratio_of_filters"]["to_servers"] == 4.0 and found["by_number"]["to_servers"] == 8_000_000
    assert summary_figures.line({"filters": found}) == (
        "1.0 MB to servers instead of 4.0 MB (4.0 times fewer) and of 12.0 MB without lists by number (12.0 times)"
    )
    older = {name: value for name, value in found.items() if name not in ("by_number", "ratio_of_filters")}
    assert summary_figures.line({"filters": older}).endswith("instead of 12.0 MB (12.0 times fewer)")


def test_where_there_are_no_filters_there_is_no_line() -> None:
    assert (
        summary_figures.filters({"handles": [1, 2, 3, 4]}, (0, 0)) is None
        and summary_figures.line({"filters": None}) == ""
    )
    assert summary_figures.handles({"handles": [1, 2, 3, 4]}) == {
        "hits": 1,
        "misses": 2,
        "forgotten": 3,
        "bytes_saved": 4,
    }
