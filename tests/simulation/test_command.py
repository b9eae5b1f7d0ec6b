"""``shoal simulate``, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.events import Begin, End, read


def test_one_seed_can_be_traced_and_its_history_kept(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    result = CliRunner().invoke(main, ["simulate", "--seed", "5", "--trace", "--history", str(history)])
    assert result.exit_code == 0, result.output
    assert "every promise held" in result.output
    assert " -> server-0" in result.output
    records = read(history)
    begun = {record.call for record in records if isinstance(record, Begin)}
    assert begun
    assert {record.call for record in records if isinstance(record, End)} <= begun


def test_many_seeds_are_added_up() -> None:
    result = CliRunner().invoke(main, ["simulate", "--seeds", "8", "--jobs", "1", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["schedules"] == 8
    assert facts["broken"] == []
    assert facts["events"] > 1_000


@pytest.mark.slow
def test_a_caught_mutant_ends_with_code_one_and_says_how_to_see_it_again() -> None:
    result = CliRunner().invoke(main, ["simulate", "--seeds", "25", "--jobs", "1", "--mutant", "no ledger"])
    assert result.exit_code == 1
    assert "shoal simulate --seed" in result.output


def test_an_unknown_mutant_is_refused_with_the_way_to_the_list() -> None:
    result = CliRunner().invoke(main, ["simulate", "--mutant", "nonsense"])
    assert result.exit_code == 2
    assert "--mutant list" in result.output
    listed = CliRunner().invoke(main, ["simulate", "--mutant", "list"])
    assert "no ledger" in listed.output


def test_the_store_is_what_is_simulated_also_by_its_former_name() -> None:
    runs = [
        CliRunner().invoke(main, ["simulate", *of, "--seeds", "2", "--jobs", "1", "--json"])
        for of in ([], ["--of", "store"], ["--of", "cluster"])
    ]
    assert [run.exit_code for run in runs] == [0, 0, 0]
    assert runs[0].stdout == runs[1].stdout == runs[2].stdout
    listed = CliRunner().invoke(main, ["simulate", "--help"]).output
    assert "gossip|moves|peers|store" in listed


@pytest.mark.slow
def test_the_faults_of_many_seeds_are_told_by_kind() -> None:
    result = CliRunner().invoke(main, ["simulate", "--of", "moves", "--seeds", "4", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "fault: join server" in result.output and "moves: handed" in result.output


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Plan(seed='a')", "Expected `int`, got `str`"),
        ("Plan(seed=1, max_delay='often')", "max_delay='often': needs a number of steps"),
        ("Plan(seed=1, servers=0)", "at least one server"),
        ("Plan(seed=1, copies=2)", "no more copies than servers"),
        ("-" * 5_000 + "1", "recursion"),
        ("Plan(seed=len('a'))", "is neither a literal nor a Fault(...)"),
        ("Plan(", "was never closed"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(text: str, why: str) -> None:
    found = CliRunner().invoke(main, ["simulate", "--plan", text])
    assert found.exit_code == 2 and why in found.stderr


@pytest.mark.slow
def test_processes_find_the_mutants_by_themselves(tmp_path: Path) -> None:
    code = "from shoal.simulation.scenarios import simulate_many as run\n"
    code += "if __name__ == '__main__': print(len(run(range(50), 2, 'no ledger').broken))"
    (script := tmp_path / "run.py").write_text(code)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    found = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert int(found.stdout) > 0


def test_an_installed_package_says_where_the_mutants_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.simulation.scenarios._ROOT", tmp_path)
    result = CliRunner().invoke(main, ["simulate", "--mutant", "list"])
    assert result.exit_code == 2
    assert "they are in tests/support/mutants of a clone" in result.output
