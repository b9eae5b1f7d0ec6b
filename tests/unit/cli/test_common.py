"""Commands suggest the right name for a typo, and offer each role its own options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from shoal import client as clients
from shoal.cli.main import main
from shoal.errors import Unanswered
from shoal.inspect import evaluate
from shoal.inspect.evaluate import ModelEvaluator
from shoal.job import Job


def told(*words: str) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    return " ".join(result.output.split())


def test_a_command_that_is_not_there_is_answered_with_those_that_are_like_it() -> None:
    assert "No such command 'trian': is train meant?" in told("trian")
    assert "No such command 'elastc': is elastic meant?" in told("bench", "elastc")
    assert "there are billion, bytes," in told("bench", "arrivals")


def test_a_server_is_not_offered_what_is_a_workers_nor_the_other_way_round() -> None:
    server, worker = (CliRunner().invoke(main, ["launch", role, "--help"]).output for role in ("server", "worker"))
    assert "--listen" in server and "--data" not in server
    assert "--data" in worker and "--listen" not in worker and "--advertise" not in worker
    both = CliRunner().invoke(main, ["join", "--help"]).output
    assert "--listen" in both and "--data" in both


def test_a_client_that_nobody_answers_names_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise Unanswered("hello", "coordinator", 11.0)

    monkeypatch.setattr(clients, "client_of", silent)
    with pytest.raises(Unanswered, match=r"no answer from coordinator at tcp://127\.0\.0\.1:1 for 11"):
        clients.connect("tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("data", "has", "features", "strange"),
    [
        ("a9a", 123, 1_000_000, True),  # another data set
        ("clicks", 1_000_000, 1_000_000, False),
        ("rows.svm", 999_000, 1_000_000, False),  # a few ids do not occur in these rows
        ("rows.svm", 123, 1_000_000, True),
        ("rows.svm", 123, None, False),  # a network checks this itself
    ],
)
def test_rows_that_have_nothing_in_common_with_a_model_are_not_judged_without_a_word(
    data: str, has: int, features: int | None, strange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "load", lambda *_: SimpleNamespace(features=has, train=None))
    monkeypatch.setattr(evaluate, "learner_of", lambda *_: None)
    job = Job.of({"data": {"source": "clicks"}})
    judging = cast(ModelEvaluator, SimpleNamespace(job=job, _features=lambda: features))
    ModelEvaluator._prepare(judging, data)
    note = judging.note
    assert bool(note) == strange
    assert not strange or ("clicks" in note and "1,000,000" in note and f"{has:,}" in note)
