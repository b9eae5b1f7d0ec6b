"""A study is read, checked, and expanded into runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shoal.errors import Invalid
from shoal.job import Job
from shoal.settings_tree import changed
from shoal.sweep.disk import identity
from shoal.sweep.grid import axes_of, points_of
from shoal.sweep.plots import _limit
from shoal.sweep.schedule import check_here
from shoal.sweep.study import Study

BASE: dict[str, Any] = {"job": {"data": "clicks"}, "grid": {"workers": [1, 2]}}


def test_every_combination_is_run_with_every_seed() -> None:
    study = Study.of({**BASE, "seeds": 2, "grid": {"workers": [1, 2, 4], "update.step": [0.1, 0.2]}})
    assert len(study.runs) == 12
    jobs = {(run.job.workers, run.job.update.step, run.seed) for run in study.runs}
    assert jobs == {(workers, step, seed) for workers in (1, 2, 4) for step in (0.1, 0.2) for seed in (0, 1)}
    assert all(run.job.seed == run.seed for run in study.runs)
    assert len({run.name for run in study.runs}) == 12
    # Every point runs once before any point runs twice.
    assert [run.seed for run in study.runs] == [0] * 6 + [1] * 6


def test_a_point_with_a_name_sets_several_things_and_leaves_the_rest() -> None:
    study = Study.of(
        {
            "job": {"data": "clicks", "emulate": {"per_example": 1e-5}},
            "seeds": 1,
            "grid": {
                "method": {
                    "sync": {"strategy": "sync", "workers": 3},
                    "sync, second copies": {
                        "strategy": {"name": "sync", "second_copies": True},
                        "emulate": {"factor": 5.0},
                    },
                }
            },
        }
    )
    first, second = study.runs
    assert (first.job.strategy.name, first.job.workers, first.name) == ("sync", 3, "sync-seed0")
    assert second.job.strategy.second_copies  # type: ignore[union-attr]
    assert (second.job.emulate.per_example, second.job.emulate.factor) == (1e-5, 5.0)
    assert second.point.title == "sync, second copies"
    assert "," not in second.name.removesuffix("-seed0") and " " not in second.name


def test_a_setting_may_be_written_with_or_without_quotes() -> None:
    quoted, nested = (axes_of(tree, "grid") for tree in ({"update.step": [1, 2]}, {"update": {"step": [1, 2]}}))
    assert quoted == nested
    assert [axis.short for axis in quoted] == ["step"]


def test_two_axes_whose_last_names_are_the_same_keep_their_first_names() -> None:
    axes = axes_of({"evaluate.every": [1.0], "checkpoint.every": [9.0]}, "grid")
    assert [axis.short for axis in axes] == ["evaluate.every", "checkpoint.every"]


def test_labels_that_a_folder_cannot_have_still_name_different_folders() -> None:
    points = points_of(axes_of({"m": {"a/b": {"workers": 1}, "a b": {"workers": 2}, "a:b": {"workers": 3}}}, "grid"))
    names = [point.name for point in points]
    assert len(set(names)) == 3
    assert all("/" not in name and " " not in name for name in names)


def test_serial_runs_come_first_and_are_nobodys_stragglers() -> None:
    job = {
        "data": "clicks", "workers": 4, "strategy": {"name": "bounded", "max_delay": 2, "combine": "sum"},
        "emulate": {"per_example": 1e-4, "slow": [0, 1], "factor": 5.0, "pause": 0.1, "stall": 1.0},
    }  # fmt: skip
    study = Study.of({"job": job, "seeds": 2, "grid": {"workers": [2, 4]}, "serial": {"update.step": [0.1, 0.2]}})
    serial = [run for run in study.runs if run.point.serial]
    assert study.runs[:4] == serial
    for run in serial:
        assert run.job.strategy.name == "serial" and run.job.strategy.combine == "sum"
        assert run.job.emulate.per_example == 1e-4 and not run.job.emulate.slows
    assert all(run.job.emulate.slows for run in study.runs[4:])


def test_a_serial_run_needs_no_grid_of_its_own() -> None:
    study = Study.of({"job": {"data": "clicks"}, "seeds": 1, "serial": {}})
    assert [run.name for run in study.runs] == ["serial-seed0"]


def test_a_target_is_a_loss_or_so_much_above_the_serial_run() -> None:
    number = Study.of({**BASE, "target": 0.42}).target
    assert number is not None and (number.loss, number.words) == (0.42, "0.42")
    above = Study.of({**BASE, "target": "serial + 1.5%", "serial": {}}).target
    assert above is not None and above.above == pytest.approx(0.015)


def test_pictures_go_along_the_longest_axis_of_numbers_unless_told_otherwise() -> None:
    grid = {"strategy": ["sync", "async", "bounded"], "workers": [1, 2]}
    study = Study.of({**BASE, "grid": grid})
    assert (study.x, study.lines) == ("workers", "strategy")
    study = Study.of({**BASE, "grid": grid, "picture": {"x": "strategy"}})
    assert (study.x, study.lines) == ("strategy", "workers")


def test_runs_tell_no_spans_unless_asked() -> None:
    assert Study.of(BASE).runs[0].job.trace.spans == 0
    asked = {**BASE, "job": {"data": "clicks", "trace": {"spans": 50}}}
    assert Study.of(asked).runs[0].job.trace.spans == 50


def test_cores_are_dealt_out_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 5, 7})
    assert Study.of(BASE).places() == [[0, 1, 2, 5, 7]]
    assert Study.of({**BASE, "cores_per_run": 2}).places() == [[0, 1], [2, 5]]
    assert Study.of({**BASE, "cores": 3, "cores_per_run": 1}).places() == [[0], [1], [2]]
    with pytest.raises(Invalid, match="this process may use 5 cores"):
        Study.of({**BASE, "cores": 6}).places()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sedes": 3}, "no key 'sedes': did you mean 'seeds'?"),
        ({"workers": 3}, "settings of runs belong to [job]"),
        ({"seeds": 0}, "seeds = 0: give how many"),
        ({"seeds": [1, 1]}, "seeds = [1, 1]: give how many"),
        ({"seeds": True}, "seeds = true"),
        ({"cores": 1, "cores_per_run": 2}, "cores_per_run = 2, of cores = 1"),
        ({"cores": "two"}, "cores = two: give a whole number"),
        ({"target": "serial + 1%"}, "there is no serial run: add [serial], or give a loss"),
        ({"target": "low"}, "target = 'low': give a loss, or such as 'serial + 1%'"),
        ({"target": float("nan")}, "target = nan"),
        ({"timeout": 0}, "timeout = 0: give a number above 0"),
        ({"name": "../up"}, "it names a folder"),
        ({"what": 3}, "what = 3: give a text"),
        ({"job": {}}, "[job] names no data"),
        ({"job": {"data": "clicks", "seed": 3}}, "[job] seed: every run has its own"),
        ({"job": {"data": "clicks", "workrs": 3}}, "[job] no setting 'workrs': did you mean 'workers'?"),
        ({"grid": {}}, "[grid] is empty"),
        ({"grid": {"workers": []}}, "[grid] workers has no values"),
        ({"grid": {"workers": 3}}, "[grid] workers = 3: give a list of values"),
        ({"grid": {"workers": [2, 2]}}, "[grid] workers has 2 twice"),
        ({"grid": {"seed": [1, 2]}}, "[grid] seed: every point is run with every seed"),
        ({"grid": {"method": {}}}, "[grid] method has no points"),
        ({"grid": {"method": {"a": {"workers": 2}, "b": [1]}}}, "[grid] method has points with names and lists"),
        ({"grid": {"workers": [1, 2], "m": {"a": {"workers": 3}}}}, "[grid] m and workers both set workers"),
        ({"grid": {"strategy": ["sync"], "m": {"a": {"strategy": {"name": "async"}}}}}, "both set strategy"),
        ({"grid": {"strategy.max_delay": [1, 2]}}, "[grid] max_delay 1: strategy 'async' has no setting 'max_delay'"),
        ({"grid": {"m": {"a": {"workers": 2}, "b": {"workers": 2}}}}, "are the same run: leave one out"),
        ({"serial": {"workers": [1, 2]}}, "[serial] workers: a serial run is one process"),
        ({"picture": {"x": "servers"}}, "[picture] x = servers: it is no axis (axes: workers)"),
        ({"picture": {"y": "workers"}}, "[picture] y: there are only x, lines and log"),
        ({"picture": {"log": "yes"}}, "[picture] log = yes: give true or false"),
        ({"target": 0.3, "job": {"data": "clicks", "stop": {"target_loss": 0.5}}}, "ends it before it can reach target = 0.3"),
        ({"grid": {"workers": list(range(1, 500)), "servers": list(range(1, 500))}}, "10,000 is the most"),
        # 2 ** 200 points.
        ({"grid": {f"axis{n}": {"a": {}, "b": {}} for n in range(200)}}, "10,000 is the most"),
        ({"grid": {"update.step": [0.1], "update": {"step": [0.1]}}}, "[grid] update.step is there twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_table_and_key(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as refused:
        Study.of({**BASE, **change})
    assert says in str(refused.value)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(Invalid, match="nothing to compare"):
        Study.of({"job": {"data": "clicks"}})


def test_a_study_is_named_by_its_file_and_its_copy_keeps_the_name(tmp_path: Path) -> None:
    file = tmp_path / "delay.toml"
    file.write_text('seeds = 1\n[job]\ndata = "clicks"\n[grid]\nworkers = [1, 2]\n')
    study = Study.load(file)
    assert study.name == "delay"
    (tmp_path / "study.toml").write_text(study.toml())
    again = Study.load(tmp_path / "study.toml")
    assert again.name == "delay"
    assert [run.name for run in again.runs] == [run.name for run in study.runs]


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "delay.toml"
    with pytest.raises(Invalid, match=r"cannot read .*delay\.toml"):
        Study.load(file)
    file.write_text("seeds = \n")
    with pytest.raises(Invalid, match=r"delay\.toml is no TOML"):
        Study.load(file)
    for text in ("x = " + "[" * 5_000, f"x = {'9' * 5_001}"):
        file.write_text(text)
        with pytest.raises(Invalid, match=r"delay\.toml is no TOML"):
            Study.load(file)
    file.write_text(f'target = 1{"0" * 400}\n[job]\ndata = "clicks"\n[grid]\nworkers = [1]\n')
    with pytest.raises(Invalid, match="too large"):
        Study.load(file)
    file.write_text('[job]\ndata = "clicks"\n[grid]\nworkers = []\n')
    with pytest.raises(Invalid, match=r"delay\.toml: \[grid\] workers has no values"):
        Study.load(file)


def test_a_file_that_a_study_names_is_sought_beside_it(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 1:1\n")
    (tmp_path / "s.toml").write_text('[job]\ndata = "rows.svm"\n[grid]\nworkers = [1, 2]\n')
    assert Study.load(tmp_path / "s.toml").runs[0].job.data.source == str(tmp_path / "rows.svm")


def test_links_that_a_point_names_are_sought_beside_the_study_and_their_folder_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("0 1\n")
    graph = '{strategy = {name = "gossip", topology = "file", edges = "links.txt"}}'
    (tmp_path / "s.toml").write_text(f'[job]\ndata = "clicks"\n[grid.graph]\nmine = {graph}\n')
    (run,) = Study.load(tmp_path / "s.toml").runs[:1]
    assert getattr(run.job.strategy, "edges", "") == str(tmp_path / "links.txt")
    (tmp_path / "else.txt").write_text("1 0  # the same\n")
    moved = Job.of(changed(msgspec.to_builtins(run.job), {"strategy.edges": str(tmp_path / "else.txt")}))
    assert identity(run.job, 2) == identity(moved, 2)
    (tmp_path / "else.txt").write_text("0 -> 1\n")
    assert identity(run.job, 2) != identity(moved, 2)
    (tmp_path / "topology.txt").write_text("0 1\n")  # the links of a run in that folder
    assert identity(run.job, 2) == identity(moved, 2, tmp_path)


def test_links_that_are_not_there_and_graphs_in_pieces_are_told_before_anything_is_run(tmp_path: Path) -> None:
    strategy = {"name": "gossip", "topology": "file", "edges": str(tmp_path / "links.txt")}
    study = Study.of({"job": {"data": "clicks", "workers": 4}, "grid": {"graph": {"mine": {"strategy": strategy}}}})
    with pytest.raises(Invalid, match=r"mine: cannot read the links in .*links\.txt"):
        check_here(study)
    (tmp_path / "links.txt").write_text("0 1\n2 3\n")
    with pytest.raises(Invalid, match=r"mine: .*0 1 \| 2 3"):
        check_here(study)


@pytest.mark.parametrize("log", [False, True])
def test_a_loss_that_gets_worse_is_seen_whole_and_one_that_runs_away_is_not(log: bool) -> None:
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    losses = {"good": [0.7, 0.4], "worse": [0.7, 1.1], "away": [0.7, 1e6]}
    for shown, top in ((("good", "worse"), 1.1), (("good", "worse", "away"), 1.3 if not log else 2.2)):
        points = [SimpleNamespace(runs=[name]) for name in shown]
        _limit(axes, points, lambda run: list(enumerate(losses[run])), log)  # type: ignore[arg-type, index]
        assert top <= axes.get_ylim()[1] < 1.2 * top


def test_headings_of_studies_carry_no_row_numbers() -> None:
    text = (Path(__file__).parents[3] / "studies" / "README.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings and not [line for line in headings if re.search(r"\bS\d-\d\d", line)]
