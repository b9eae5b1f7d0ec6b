"""``shoal query`` reads the model of a run while it is trained and afterwards.

Where there is no model, it says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.models.linear import Linear
from shoal.models.trained import Trained
from shoal.run.run import execute
from shoal.strategies.parameter_server.run import ServerRun
from shoal.testing.conformance import Candidate
from tests.support.sandbox import Den, soon


def test_a_model_is_asked_while_it_is_trained_watched_to_its_end_and_read_afterwards(tmp_path: Path, den: Den) -> None:
    folder, seen = tmp_path / "run", dict[str, str]()
    watching = list[subprocess.Popen[str]]()

    def started(training: ServerRun) -> None:
        assert soon(lambda: training.course.steps > 20)
        seen["page"] = CliRunner().invoke(main, ["query", str(folder), "--top", "3"]).output
        seen["json"] = CliRunner().invoke(main, ["query", str(folder), "--json"]).output
        members = [one.name for one in training.status().standing.members]
        assert not any("visit" in name or "look" in name for name in members)
        watching.append(den.start("-m", "shoal", "query", str(folder), "--watch", "--every", "0.1", "--json"))
        assert watching[0].stdout is not None
        for name in ("first", "second"):
            seen[name] = watching[0].stdout.readline()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(
            Candidate("async", "processes").job(stop__epochs=1e6, workers=1, data__rows=1_000), folder, started=started
        )
    assert "2,001 weights" in seen["page"] and "not zero" in seen["page"] and "largest weights" in seen["page"]
    told = json.loads(seen["json"])
    assert told["live"] and told["run"]["steps"] > 20 and 0 < told["nonzero"] <= told["weights"] == 2_001
    first, second = json.loads(seen["first"]), json.loads(seen["second"])
    assert second["run"]["steps"] >= first["run"]["steps"] and first["l2"] > 0
    rest, error = watching[0].communicate(timeout=60)
    assert watching[0].returncode == 0, error
    last = json.loads(rest.splitlines()[-1])
    assert not last["live"]  # read from the files of the run
    model = Trained.load(folder / "model.safetensors")
    assert last["nonzero"] == np.count_nonzero(model.table)
    assert shoal.query(folder, "top", k=1) == shoal.query(model, "top", k=1)
    done = CliRunner().invoke(main, ["query", str(folder)])
    assert done.exit_code == 0 and "as its run has left it" in done.output


def kept(folder: Path) -> Path:
    table = np.array([0.5, 0, -2, 0, 1.5], np.float32)
    Trained(table, Linear(), 4).save(folder / "model.safetensors")
    return folder / "model.safetensors"


def test_a_model_file_is_asked_as_servers_are(tmp_path: Path) -> None:
    file = kept(tmp_path)
    for where in (tmp_path, file, str(file)):
        assert shoal.query(where, "nonzeros") == {"weights": 5, "nonzero": 3, "negative": 1}
    assert shoal.query(tmp_path, "top", k=2) == [(2, 0, -2.0), (4, 0, 1.5)]
    assert shoal.query(tmp_path, "count", keys=slice(1, 3)) == 2
    # There is nothing to wait for.
    page = CliRunner().invoke(main, ["query", str(tmp_path), "--watch"]).output
    assert "bias      1.5000" in page
    with pytest.raises(shoal.ShoalError, match="has none; leave it out"):
        shoal.query(tmp_path, "count", servers=["server-0"])
    with pytest.raises(shoal.ShoalError, match="a range of keys from 0 to 5"):
        shoal.query(tmp_path, "count", keys=slice(0, 9))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tcp://192.0.2.1:80"], 2, "can be reached from other machines"),
        (["no-such-folder"], 2, "neither a run's folder nor an address"),
        (["kept", "--table", "w"], 2, "only the model is left"),
        (["kept", "--top", "-1"], 2, "--top"),
        (["kept", "--every", "0"], 2, "--every"),
        (["kept", "--ask", "norm"], 2, "did you mean 'norms'"),
        (["kept", "--ask", "top", "--set", "k=x"], 2, "needs a name and a number"),
        (["kept", "--ask", "top", "--set", "n=3"], 2, "has no setting 'n'"),
        (["kept", "--ask", "top", "--module", "no_such_module"], 2, "cannot import 'no_such_module'"),
        (["kept", "--set", "k=3"], 2, "--set and --module are for --ask"),
        (["kept", "--ask", "top", "--watch"], 2, "--ask asks once"),
        (["ended"], 1, "has ended and left no model"),
        (["damaged"], 2, "cannot be read as a model"),
        (["alone"], 1, "a run by serial has no coordinator"),
        (["starting"], 1, "is being started"),
    ],
)
def test_where_there_is_nothing_to_ask_that_is_said(
    tmp_path: Path, arguments: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "ended", "damaged", "alone", "starting"):
        (tmp_path / name).mkdir()
    kept(tmp_path / "kept")
    (tmp_path / "ended" / "summary.json").write_text("{}")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"\0" * 40)
    (tmp_path / "alone" / "job.toml").write_text('data = "clicks"\nstrategy = "serial"\n')
    (tmp_path / "starting" / "job.toml").write_text('data = "clicks"\n')
    (tmp_path / "starting" / "lock").write_text(str(os.getpid()))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["query", *arguments])
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_one_question_is_asked_by_its_name_a_users_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path)
    lines = CliRunner().invoke(main, ["query", str(tmp_path), "--ask", "norms"]).output.splitlines()
    assert lines == ["l1  4.0", f"l2  {6.5**0.5}", "largest  2.0"]
    assert CliRunner().invoke(main, ["query", str(tmp_path), "--ask", "count"]).output == "5\n"
    told = CliRunner().invoke(main, ["query", str(tmp_path), "--ask", "top", "--set", "k=1", "--json"]).output
    assert json.loads(told) == [[2, 0, -2.0]]
    (tmp_path / "questions_of_a_job.py").write_text(
        "import shoal\n@shoal.question(above=0.0)\ndef some(keys, weights, settings):\n"
        "    return (weights > settings.above).sum(), keys[:1], weights[:1]\n"
        "@shoal.question()\ndef positive(keys, weights, settings):\n    return (weights > 0).sum()\n"
    )
    (tmp_path / "job.toml").write_text('data = "clicks"\nlaunch = {modules = ["questions_of_a_job"]}\n')
    monkeypatch.setattr(sys, "path", list(sys.path))
    # The job names its modules, and they are found in this folder.
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["query", str(tmp_path), "--ask", "some", "--set", "above=1", "--json"])
    assert json.loads(done.output) == {"numbers": [1.0], "keys": [0], "values": [[0.5]]}
    assert CliRunner().invoke(main, ["query", str(tmp_path), "--ask", "positive"]).output == "2\n"


def test_a_run_that_is_over_is_asked_like_its_folder(tmp_path: Path) -> None:
    run = shoal.train("rcv1-like", strategy="serial", epochs=1, settings={"data.rows": 300, "data.features": 1_000})
    assert shoal.query(run, "count") == 1_001
    run.model = None
    with pytest.raises(shoal.ShoalError, match="has no model that could be asked"):
        shoal.query(run, "count")


def test_a_run_that_was_killed_may_be_taken_up(tmp_path: Path) -> None:
    (tmp_path / "address").write_text("ipc:///nowhere/at-all")
    done = CliRunner().invoke(main, ["query", str(tmp_path)])
    assert done.exit_code == 1 and "nobody answers at" in done.output and "shoal train --resume" in done.output


def test_who_watches_at_a_terminal_sees_it_drawn_and_gets_the_cursor_back() -> None:
    with shoal.local(servers=1, processes=True) as cluster:
        cluster.client().create("w", shoal.Dense(rows=50, initial=shoal.Normal(1.0)))
        command = [sys.executable, "-m", "shoal", "query", cluster.address, "--watch", "--every", "0.1"]
        ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (50, 100))  # room for the curves, which change with time
        env = {**os.environ, "TERM": "xterm"}
        child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        seen = b""
        try:
            # It is drawn repeatedly.
            while seen.count(b"largest weights") < 3 or "█".encode() not in seen:
                seen += os.read(ours, 65_536)
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # raised when all is read
                while more := os.read(ours, 65_536):
                    seen += more
            assert child.wait(30) == 130
        finally:
            child.kill()
            child.wait()
            os.close(ours)
    assert b"interrupted" in seen and b"\x1b[?25h" in seen[seen.rindex(b"\x1b[?25l") :]


def test_a_cluster_of_one_table_needs_no_name_and_one_of_several_does() -> None:
    with shoal.local(servers=1, processes=True) as cluster:
        kv = cluster.client()
        done = CliRunner().invoke(main, ["query", cluster.address])
        assert done.exit_code == 2 and "there are none yet" in done.output
        kv.create("a", shoal.Sparse(hashed=True, width=2))
        kv.push("a", [7], [[1.0, -3.0]]).result()
        done = CliRunner().invoke(main, ["query", cluster.address])
        assert "1 rows   2 weights   2 not zero" in done.output and "7[1]" in done.output
        kv.create("b", shoal.Dense(rows=5))
        done = CliRunner().invoke(main, ["query", cluster.address])
        assert done.exit_code == 2 and "name one of a, b" in done.output
        assert CliRunner().invoke(main, ["query", cluster.address, "--table", "b"]).exit_code == 0
