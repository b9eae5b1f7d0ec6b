"""``shoal topology`` and ``--allow-disconnected`` show a graph before training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "links.txt").write_text("0 1\n1 -> 2\n")
    (tmp_path / "empty.txt").write_text("")
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["topology", *arguments])


def test_a_graph_is_told_with_its_gap_its_rounds_and_its_weights() -> None:
    found = call("ring", "--nodes", "4")
    assert found.exit_code == 0
    assert "ring: 4 workers, 4 links, 2 from each" in found.stdout
    assert "1: everybody hears of everybody" in found.stdout
    assert "spectral gap       0.6667   (second eigenvalue 0.3333)" in found.stdout
    assert "4.2 rounds to 0.01" in found.stdout
    assert "0  0.333 0.333     . 0.333" in found.stdout


def test_a_graph_that_falls_apart_ends_with_1_and_its_pieces() -> None:
    found = call("file", "--edges", "links.txt")
    assert found.exit_code == 1
    assert "file: 3 workers, 3 one-way links" in found.stdout and "2: 0 1 | 2" in found.stdout
    assert "predicted rounds   never" in found.stdout and "--allow-disconnected" in found.stdout


def test_the_picture_is_written(home: Path) -> None:
    pytest.importorskip("matplotlib")
    found = call("torus", "--nodes", "9", "--out", "torus.svg")
    assert found.exit_code == 0 and "the picture: torus.svg" in found.stdout
    assert (home / "torus.svg").read_bytes().startswith(b"<?xml")


def test_programs_are_told_all_of_it() -> None:
    found = json.loads(call("complete", "--nodes", "3", "--json").stdout)
    assert found["links"] == [[0, 1], [0, 2], [1, 2]] and found["gap"] == 1 and found["connected"]
    assert found["rounds"] == {"0.1": 1, "0.01": 1, "1e-06": 1}
    assert found["weights"][0] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["torus", "--nodes", "7"], "take 6 or 8 workers"),
        (["ring", "--degree", "4"], "--degree is for random graphs"),
        (["file"], "needs --edges FILE"),
        (["ring", "--edges", "links.txt"], "needs --edges FILE"),
        (["file", "--edges", "nowhere.txt"], "cannot read the links in nowhere.txt"),
        (["file", "--edges", "links.txt", "--nodes", "2"], "line 2: there is no worker 2"),
        (["ring", "--nodes", "100000"], "give 1 to 1,024\n"),
        (["random", "--nodes", "4", "--degree", "9"], "at most 3 (degree)"),
        (["file", "--edges", "empty.txt"], "empty.txt has no links: write one a line"),
        (["ring", "--out", "picture.nix"], "names no kind of picture"),
        (["ring", "--out", f"{'x' * 300}.png"], "choose another place (--out)"),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_move(arguments: list[str], why: str) -> None:
    found = call(*arguments)
    assert found.exit_code == 2 and why in found.stderr


def test_other_strategies_have_no_graph_to_allow() -> None:
    found = CliRunner().invoke(main, ["train", "clicks", "--strategy", "sync", "--allow-disconnected"])
    assert found.exit_code == 2 and "only gossip" in found.stderr


def test_a_graph_in_pieces_is_refused_with_these_and_trained_on_when_that_is_allowed(home: Path) -> None:
    pytest.importorskip("matplotlib")
    (home / "links.txt").write_text("0 1\n2 3\n")
    small = [
        "data.rows=2000",
        "data.features=1000",
        "data.batch=64",
        "strategy.topology=file",
        "strategy.edges=links.txt",
    ]
    words = ["train", "rcv1-like", "--strategy", "gossip", "--workers", "4", "--on", "threads", "--epochs", "2"]
    words += [word for one in [*small, "strategy.start=own"] for word in ("--set", one)]
    refused = CliRunner().invoke(main, [*words, "--out", "run"])
    assert refused.exit_code == 2 and "0 1 | 2 3: add links between them" in refused.stderr
    assert not (home / "run").exists()
    trained = CliRunner().invoke(main, [*words, "--allow-disconnected", "--out", "run"])
    assert trained.exit_code == 0, trained.output
    assert "which no worker has: their own have test losses of" in trained.stdout
    assert (home / "run" / "topology.png").stat().st_size > 5_000
    spread = json.loads((home / "run" / "summary.json").read_bytes())["spread"]
    assert spread["distance"] > 0 and spread["best"] <= spread["worst"]
    assert "2 pieces" in (home / "run" / "log.txt").read_text()
