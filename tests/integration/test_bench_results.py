"""Results that ``shoal bench`` wrote earlier are read and shown like new ones."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import BENCHES
from benchmarks.harness import Option, command, load
from shoal.cli import bench as bench_command
from shoal.cli.main import main

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
OLDER = ("curve",)  # written before checksums were measured separately
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.json")) if path.stem not in OLDER}
MODULES = {**{name: module for name, (module, _) in BENCHES.items()}, "skew": "skew", "hogwild-16-cores": "hogwild"}


@pytest.mark.parametrize("name", FILES)
def test_earlier_results_are_read_and_shown(name: str) -> None:
    module = import_module(f"benchmarks.{MODULES[name]}")
    printed = io.StringIO()
    Console(width=250, file=printed).print(module.table(load(FILES[name], module.Results)))
    assert len(printed.getvalue().splitlines()) > 4


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_has_a_command_with_its_options(name: str) -> None:
    module = import_module(f"benchmarks.{BENCHES[name][0]}")
    made = command(name, module)
    asked = {flag for one in made.params for flag in one.opts}
    assert {"--quick", "--json"} | {option.flag for option in module.BENCH.options} <= asked
    assert module.FULL != module.QUICK


def test_a_setting_of_zero_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import harness

    chosen = []
    bench = harness.Bench(
        help="", quick_help="", measure=lambda settings, say: None, table=lambda results: "",
        options=(Option("rows", "", click.IntRange(0)), Option("skew", "", is_flag=True)),
        choose=lambda settings, **changes: chosen.append(changes),
    )  # fmt: skip
    harness._chosen(bench, None, {"rows": 0, "skew": False})
    harness._chosen(bench, None, {"rows": None, "skew": True})
    assert chosen == [{"rows": 0}, {"skew": True}]


def test_where_only_the_package_is_installed_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_command, "_ROOT", tmp_path)
    told = CliRunner().invoke(main, ["bench", "store", "--quick"])
    assert told.exit_code != 0 and "the benchmarks are not installed" in told.output
