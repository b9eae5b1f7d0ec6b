"""A report has a section for everything that a run recorded, and no other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from shoal.errors import Invalid
from shoal.events import Delayed, Gone, Handed, Joined, RunEvent, Saved, Shared, Spans, Stopped
from shoal.job import Job
from shoal.views.page import Section, page
from shoal.views.report_sections import sections, title
from shoal.views.run_record import (
    RunRecord,
    named,
    read,
    tell,
    unlike,
)

pytest.importorskip("matplotlib")

SUMMARY = {
    "examples": 1000,
    "steps": 10,
    "examples_per_second": 100.0,
    "bytes_sent": 2_000_000,
    "bytes_received": 1_000_000,
    "staleness": {"mean": 1.5, "p95": 2, "max": 3, "counts": [1, 5, 3, 1]},
    "machine": {"platform": "Linux", "processor": "x86_64", "cores": 8, "memory": 2**34, "python": "3.11", "load": 0.5},
}


def whole(story: Any) -> list[RunEvent]:
    """A run with events of all kinds."""
    spans = [(kind, at / 4, 0.125) for at in range(200) for kind in ("compute", "wait")]
    spans = [(kind, at + (0.125 if kind == "wait" else 0), length) for kind, at, length in spans]
    told: list[RunEvent] = [Spans(seconds=50.0, name=f"worker-{n}", spans=spans) for n in range(2)]
    told += [Delayed(seconds=5.0, max_delay=4, waiting=0.2), Saved(seconds=7.0, number=1, steps=9, bytes=8, took=0.1)]
    told += [replace(story.progress(50.0, 9.0), spent={"compute": 5.0, "wait": 5.0})]
    events = list(story.run())
    return [*events[:-1], *told, events[-1]]


def by_title(found: list[Section]) -> dict[str, Section]:
    return {section.title: section for section in found}


def test_everything_that_is_told_has_its_section(story: Any) -> None:
    found = by_title(sections([tell("one", whole(story), SUMMARY, Job())]))
    assert list(found) == [
        "Findings",
        "Losses",
        "Where the time went",
        "Timeline",
        "Staleness",
        "Bytes",
        "Members",
        "Faults and recoveries",
        "Membership changes",
        "Checkpoints",
        "Delay",
        "What was trained",
        "The machine",
    ]
    assert [one.name for one in found["Timeline"].pictures] == ["timeline", "step"]
    assert found["Bytes"].tables[0].rows == [["2.0 MB", "1.0 MB", "3,000 B", "300,000 B"]]
    assert found["The machine"].tables[0].rows[0][:3] == ["2 of 8", "x86_64", "16.0 GB"]


def test_every_evaluation_is_told_with_its_workers(story: Any) -> None:
    found = by_title(sections([tell("one", whole(story))]))
    (table,) = found["Losses"].tables
    assert len(table.rows) == 11 and "workers" not in table.heads
    assert table.caption.endswith("In all rows: workers 4.")  # once, not eleven times
    assert found["Members"].tables[0].rows == [["0 to 10", "4"]]
    fewer = [replace(event, workers=3) if getattr(event, "number", 0) == 4 else event for event in whole(story)]
    found = by_title(sections([tell("one", fewer)]))
    assert found["Losses"].tables[0].heads[-1] == "workers"
    assert found["Members"].tables[0].rows == [["0 to 3", "4"], ["4", "3"], ["5 to 10", "4"]]
    still = [story.started(), story.progress(1.0, 0.1), story.evaluated(0, 1.0, 0.1, 0.5)]
    assert by_title(sections([tell("one", still)]))["Members"].words == ["4 workers took part at each of 1 evaluation."]


def test_servers_have_a_section_with_what_the_events_hold_of_them(story: Any) -> None:
    there: list[RunEvent] = [Joined(seconds=0.0, name=f"server-{n}", role="server") for n in range(2)]
    spans = [("communicate", float(at), 0.01 if at else 0.2) for at in range(20)]
    moved = Handed(
        seconds=6.0, table="weights", segments=[1, 2], source="server-0", target="server-1", why="count", took=1.0, stall=0.04
    )  # fmt: skip
    there += [Shared(seconds=0.0, serves={"server-0": 8, "server-1": 4}, copies={"server-0": 4, "server-1": 8})]
    there += [*whole(story)[:-1], moved, Spans(seconds=50.0, name="worker-3", spans=spans)]
    there += [Gone(seconds=9.0, name="server-1", role="server", why="killed")]
    there += [Shared(seconds=9.0, serves={"server-0": 12, "server-1": 0}, copies={"server-0": 0, "server-1": 0})]
    found = by_title(sections([tell("one", there)]))["Servers"]
    (table,) = found.tables
    rows = [dict(zip(table.heads, row, strict=True)) for row in table.rows]
    assert [row["segments served"] for row in rows] == ["8 to 12", "4 to 0"]
    assert [(row["segments taken over"], row["given away"], row["lost"]) for row in rows] == [
        ("0", "2", "0"),
        ("2", "0", "1"),
    ]
    assert "longest pause 40 ms" in table.caption
    assert found.words[0].startswith("Workers pushed and pulled for 10 ms at a time (median), ")
    assert found.words[1] == "Memory and queue lengths of servers are not recorded."
    assert [picture.name for picture in found.pictures] == ["segments-one"]
    assert "Servers" not in by_title(sections([tell("one", alone(story, "serial"))]))


def test_the_whole_run_is_shown_before_some_steps_of_it(story: Any) -> None:
    told = [
        replace(story.progress(float(at), at / 10), spent={"compute": 1.0, "wait": float(at)}) for at in range(1, 51)
    ]
    found = by_title(sections([tell("one", [*whole(story)[:-1], *told])]))["Timeline"]
    assert [one.name for one in found.pictures] == ["whole", "timeline", "step"]
    assert found.pictures[0].caption.startswith("The whole run: how all workers together spent their time.")
    assert b"shown below" in found.pictures[0].svg


def test_of_many_evaluations_some_are_shown_with_the_best_and_the_last(story: Any) -> None:
    losses = [1.0 if at != 51 else 0.1 for at in range(100)]
    events = [story.evaluated(at, float(at), at / 10, one) for at, one in enumerate(losses)]
    (table,) = by_title(sections([tell("one", events)]))["Losses"].tables
    numbers = [row[0] for row in table.rows]
    assert len(numbers) < 50 and "51" in numbers and numbers[-1] == "99"
    assert "more are left out" in table.caption


def test_faults_are_told_in_order_with_when_they_were_over(story: Any) -> None:
    (table,) = by_title(sections([tell("one", list(story.run()))]))["Faults and recoveries"].tables
    assert [row[1] for row in table.rows] == ["lost", "void"]
    assert table.rows[0] == [
        "20",
        "lost",
        "worker-3 gone: its process ended with signal 9; 12 slots reassigned",
        "not felt",
    ]


@pytest.mark.variants(slow=["no evaluation", "no progress", "no spans, no end"])
@pytest.mark.parametrize(
    "kept",
    [
        lambda event: False,
        lambda event: not hasattr(event, "test_loss"),
        lambda event: not hasattr(event, "spent"),
        lambda event: not isinstance(event, Spans | Stopped),
    ],
    ids=["nothing", "no evaluation", "no progress", "no spans, no end"],
)
def test_what_is_not_told_is_no_reason_to_fail(story: Any, kept: Any) -> None:
    events = [event for event in whole(story) if kept(event)]
    one = tell("one", events)
    found = by_title(sections([one]))
    assert "Findings" in found
    assert ("Timeline" in found) == any(isinstance(event, Spans) for event in events)
    sections([one, tell("other", whole(story), SUMMARY, Job())])
    page(title([one]), list(found.values()))


def test_losses_that_are_no_numbers_and_one_worker_are_drawn_as_well(story: Any) -> None:
    events = [story.started(workers=1), story.progress(1.0, 0.5, math.inf), story.evaluated(0, 1.0, 0.5, math.nan)]
    found = by_title(sections([tell("one", events)]))
    assert b"no loss is recorded" in found["Losses"].pictures[0].svg


def test_several_runs_stand_beside_each_other(story: Any) -> None:
    runs = [tell(name, whole(story), SUMMARY, Job(workers=n)) for n, name in enumerate(("one", "other"), 2)]
    found = by_title(sections(runs))
    (table,) = found["Figures"].tables
    assert table.heads == ["", "one (bounded)", "other (bounded)"]
    assert [row[0] for row in table.rows][:3] == ["workers", "seconds", "rows/s"]
    assert found["What was trained"].tables[0].rows[-1] == ["workers", "(default)", "3"]
    assert title(runs) == "2 runs: one, other"
    assert {"Delay of one", "Members of other", "Findings of each run"} <= set(found)


@pytest.mark.slow
def test_many_runs_are_rows_of_the_table(story: Any) -> None:
    runs = [tell(f"run {n}", list(story.run()), SUMMARY) for n in range(7)]
    (table,) = by_title(sections(runs))["Figures"].tables
    assert len(table.rows) == 7 and table.heads[0] == "run"
    assert title(runs).endswith("run 5, and 1 more")


@pytest.mark.slow
def test_names_are_shown_and_do_nothing_else(story: Any) -> None:
    evil = "<script>alert(1)</script>"
    events = [replace(story.started(), data=evil, model=evil, strategy=evil, emulated=evil), *whole(story)[1:]]
    events += [story.gone(20.0, evil, evil), Spans(seconds=9.0, name=evil, spans=[("compute", 0.0, 1.0)])]
    runs = [tell(evil, events, SUMMARY, Job()), tell("$x_{$", events, SUMMARY, Job())]
    for told in (runs, runs[:1]):
        text = page(title(told), sections(told))
        assert "<script" not in text and "&lt;script&gt;" in text


def test_what_goes_with_a_strategy_is_not_told_as_a_setting() -> None:
    job = Job.of({"data": "rcv1", "strategy": {"name": "block-proximal", "max_delay": 2}, "update": {"l1": 3.0}})
    assert unlike(job) == {
        "data": "rcv1",
        "model": "logistic",
        "strategy": "block-proximal",
        "strategy.blocks": 48,  # more blocks because of the delay, which is worth showing
        "strategy.max_delay": 2,
        "update.l1": 3.0,
    }


def test_settings_that_differ_from_the_defaults_are_told() -> None:
    job = Job.of({"data": "rcv1", "strategy": {"name": "bounded", "max_delay": 3}, "stop": {"epochs": 4.0}})
    assert unlike(job) == {
        "data": "rcv1",
        "model": "logistic",
        "strategy": "bounded",
        "strategy.max_delay": 3,
        "stop.epochs": 4.0,
    }


# ---------------------------------------------------------------- folders


def folder(path: Path, events: list[RunEvent], **files: bytes) -> Path:
    path.mkdir(parents=True)
    (path / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    for name, content in files.items():
        (path / name.replace("_", ".")).write_bytes(content)
    return path


def test_a_run_is_read_from_its_folder(story: Any, tmp_path: Path) -> None:
    told = read(folder(tmp_path / "one", whole(story), summary_json=b'{"failed": false}', job_toml=b'data = "clicks"'))
    assert (told.name, told.summary, told.problems) == ("one", {"failed": False}, [])
    assert told.job is not None and told.run.best is not None


def test_what_is_damaged_or_missing_is_told(story: Any, tmp_path: Path) -> None:
    path = folder(tmp_path / "one", list(story.run()), summary_json=b"[", job_toml=b"\xff")
    with open(path / "events.jsonl", "ab") as file:
        file.write(b"not json\n{}\n\xff\xfe\n")
    told = read(path)
    assert told.problems[0] == "3 lines of events.jsonl cannot be read and are left out."
    assert told.problems[1].startswith("summary.json cannot be read") and "is no TOML" in told.problems[2]
    (path / "summary.json").unlink()
    assert "There is no summary.json: the run goes on, or was cut short" in " ".join(read(path).problems)
    assert "Findings" in by_title(sections([told]))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, story: Any) -> None:
    with pytest.raises(Invalid, match="there is no folder"):
        read(tmp_path / "none")
    with pytest.raises(Invalid, match="is no run: it has no events"):
        read(tmp_path)
    (tmp_path / "job.toml").write_text("")
    with pytest.raises(Invalid, match="its run has not begun"):
        read(tmp_path)
    with pytest.raises(Invalid, match="no beginning of a run"):
        read(folder(tmp_path / "odd", [story.progress(1.0, 0.1)]))


@pytest.mark.parametrize(
    "odd", [b"null", b'{"staleness": 3, "machine": [], "bytes_sent": "x"}', b'{"staleness": {"counts": [-1, "x"]}}']
)
def test_an_odd_summary_is_no_reason_to_fail(story: Any, tmp_path: Path, odd: bytes) -> None:
    sections([read(folder(tmp_path / "one", list(story.run()), summary_json=odd))])


def test_runs_of_one_name_are_told_apart(story: Any, tmp_path: Path) -> None:
    runs = [read(folder(tmp_path / parent / "run", list(story.run()))) for parent in ("a", "b")]
    runs += [RunRecord("x", runs[0].run), RunRecord("x", runs[0].run)]
    named(runs)
    assert [one.name for one in runs] == ["a/run", "b/run", "x (3)", "x (4)"]


def alone(story: Any, strategy: str) -> list[RunEvent]:
    """A run without servers."""
    first, *rest = story.run()
    return [replace(first, strategy=strategy, servers=0), *rest]


@pytest.mark.parametrize("strategy", ["serial", "allreduce", "hogwild"])
def test_a_run_without_pushes_says_nothing_of_staleness_or_bytes(story: Any, strategy: str) -> None:
    still = {**SUMMARY, "bytes_sent": 0, "bytes_received": 0}
    found = by_title(sections([tell("one", alone(story, strategy), still)]))
    assert "Staleness" not in found and "Bytes" not in found
    said = " ".join(found["Findings"].words)
    assert "pushes" not in said and "server" not in said


@pytest.mark.slow
def test_what_a_run_cost_stands_beside_its_seconds(story: Any) -> None:
    summary = {**SUMMARY, "cpu_seconds": 96.4}
    one, other = (tell(name, list(story.run()), summary) for name in ("one", "other"))
    found = by_title(sections([one]))["What it cost"]
    assert found.tables[0].heads[:2] == ["seconds", "CPU seconds"] and found.tables[0].rows[0][1] == "96.4"
    assert "with 96.4 CPU seconds in all" in " ".join(by_title(sections([one]))["Findings"].words)
    both = by_title(sections([one, other]))["What it cost"]
    assert [picture.name for picture in both.pictures] == ["cost"] and len(both.tables[0].rows) == 2
    assert "What it cost" not in by_title(sections([tell("old", list(story.run()), SUMMARY)]))


def test_what_waiting_means_is_said_for_each_strategy(story: Any) -> None:
    spent = replace(story.progress(50.0, 9.0), spent={"compute": 5.0, "communicate": 5.0})
    ranks = tell("ranks", [*alone(story, "averaging"), spent])
    (caption,) = [one.caption for one in by_title(sections([ranks]))["Where the time went"].pictures]
    assert "Ranks wait for the slowest of them" in caption and "server" not in caption


def test_a_figure_that_no_run_has_is_not_among_them(story: Any) -> None:
    runs = [tell(name, alone(story, "hogwild"), {}) for name in ("one", "other")]
    (table,) = by_title(sections(runs))["Figures"].tables
    assert not {"staleness, mean", "CPU seconds"} & {row[0] for row in table.rows}


def test_runs_that_learn_other_things_have_no_loss_in_common(story: Any) -> None:
    events = list(story.run())
    other = [replace(events[0], data="digits"), *events[1:]]
    for second, alike in ((events, True), (other, False)):
        (table,) = by_title(sections([tell("one", events, SUMMARY), tell("two", second, SUMMARY)]))["Figures"].tables
        assert any(row[0].startswith("seconds to ") for row in table.rows) == alike


def test_cpu_seconds_are_divided_by_the_time_in_which_they_were_spent_starting_included(story: Any) -> None:
    events = list(story.run())
    for strategy, elapsed, told in (("bounded", {"elapsed_seconds": 64.0}, "1.51"), ("gossip", {}, "-")):
        run = tell(
            "one", [replace(events[0], strategy=strategy), *events[1:]], SUMMARY | {"cpu_seconds": 96.4} | elapsed
        )
        (table,) = by_title(sections([run]))["What it cost"].tables
        row = dict(zip(table.heads, table.rows[0], strict=True))
        assert row.get("CPU seconds a second", "-") == told  # an unknown figure has no column


def test_of_a_resumed_run_cpu_seconds_stand_beside_the_seconds_of_their_span(story: Any) -> None:
    summary = SUMMARY | {"cpu_seconds": 96.4, "elapsed_seconds": 64.0, "examples": 1_000_000}
    rows = []
    for resumed in (0, 1):
        (table,) = by_title(sections([tell("one", list(story.run()), summary | {"resumed": resumed})]))[
            "What it cost"
        ].tables
        rows.append(dict(zip(table.heads, table.rows[0], strict=True)))
    assert (rows[0]["seconds"], rows[0]["for a million rows"]) == ("60", "96.4")
    assert rows[1]["seconds"] == "64" and "for a million rows" not in rows[1], "the rows are of all spans"
