"""`shoal train` and `shoal data` as typed: what they print, how they end, what they leave.

Quick tests call the command in this process. Tests of signals, pipes, locales and two commands at
once start real processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.errors import Invalid
from shoal.events import Stopped, read_run
from shoal.job import Job
from shoal.run.folder import RunFolder
from shoal.run.run import execute
from shoal.strategies.parameter_server.run import ServerRun
from tests.support.sandbox import Den, soon

ROWS = "".join(f"{(-1) ** n} {n % 20 + 1}:1 {n % 7 + 30}:0.5\n" for n in range(100))
# A shell reports 130 for both. `python -m` ends itself by the signal if the signal arrives inside
# an exec, such as the creation of a dataclass.
INTERRUPTED = (130, -signal.SIGINT)
QUICK = ("--epochs", "1", "--set", "launch.how=threads")


@pytest.fixture
def home(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that contains rows.svm."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.svm").write_text(ROWS)
    return tmp_path


def call(*arguments: str) -> Result:
    """Run the command in this process."""
    ended = CliRunner().invoke(main, arguments, prog_name="shoal")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended


def refused(*arguments: str) -> str:
    """Return the error of a `shoal train` that is refused and leaves nothing."""
    before = sorted(Path().iterdir())
    ended = call("train", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.output
    assert sorted(Path().iterdir()) == before
    return ended.stderr.partition("Error: ")[2].strip()


def start(*arguments: str, code: str = "", **environment: str) -> subprocess.Popen[bytes]:
    """Start the command in its own process."""
    python = ["-c", f"{code}\nfrom shoal.cli.main import main; main(prog_name='shoal')"] if code else ["-m", "shoal"]
    return subprocess.Popen(
        [sys.executable, *python, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def finish(process: subprocess.Popen[bytes], code: int = 0) -> tuple[str, str]:
    out, errors = (text.decode() for text in process.communicate(timeout=120))
    assert process.returncode == code, errors
    assert "Traceback" not in errors and "Exception ignored" not in errors, errors
    return out, errors


# ---------------------------------------------------------------- help


def test_help_names_every_option_and_imports_nothing_heavy() -> None:
    ended = call("train", "--help")
    assert ended.exit_code == 0
    (command,) = (one for name, one in main.commands.items() if name == "train")
    options = [name for one in command.params for name in one.opts if name.startswith("--")]
    assert {"--model", "--strategy", "--workers", "--servers", "--test", "--epochs", "--seed", "--set", "--out"} <= set(
        options
    )
    for option in options:
        assert re.search(rf"^  {option}\b", ended.stdout, re.MULTILINE), option
    code = "import atexit, sys; atexit.register(lambda: print('numpy' in sys.modules, 'numba' in sys.modules))"
    out, _ = finish(start("train", "--help", code=code))
    assert out.endswith("False False\n")


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "data.bach=3"], "no setting data.bach: did you mean 'data.batch'?"),
        (["--set", "bach=3"], "no setting 'bach': did you mean 'data.batch'?"),
        (["--set", "update.stp=3"], "no setting update.stp: did you mean 'update.step'?"),
        (["--set", "epochs"], "'epochs': write it as a.b=c"),
        (["--set", "=3"], "no setting '' (settings: data, data.source"),
        (
            ["--strategy", "asink"],
            "no strategy 'asink': did you mean 'async'? (strategies: sync, bounded, async, serial, averaging, allreduce, hogwild, block-proximal, gossip, peer-to-peer)",
        ),
        (
            ["--model", "logistik"],
            "did you mean 'logistic'? There are logistic, hinge, squared (for sparse rows), linear",
        ),
        (["--model", "hing"], "did you mean 'hinge'?"),
        (["--set", "update=adagard"], "did you mean 'adagrad'? (there are adagrad, sgd, ftrl, momentum"),
        (["--set", "launch.how=thread"], "did you mean 'threads'?"),
        (["--set", "strategy.combine=avg"], "(there are mean, sum)"),
        (["--set", "strategy.max_delay=3"], "strategy 'async' has no setting 'max_delay', only sync, bounded"),
        (["--set", "workers=two"], "workers: Expected `int`, got `str`: give a whole number"),
        (["--set", "stop=3"], "stop: Expected `object`, got `int`: give its settings one by one, by their names"),
        (["--epochs", "0"], "stop.epochs=0.0: needs a number above 0, or leave it out"),
        (["--workers", "0"], "0 is not in the range x>=1"),
        (["--workers", "9999"], "workers=9999: needs 1 to 512"),
        (["--seed", "-1"], "seed=-1: needs 0 to 2^63 - 1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_was_meant(home: Path, arguments: list[str], says: str) -> None:
    said = refused("rows.svm", *QUICK, *arguments)
    assert says in said
    assert said.count("\n") == 0


def test_a_typo_in_a_job_file_is_named_with_the_file(home: Path) -> None:
    cases = {
        'data = "rows.svm"\nworkrs = 3\n': "job.toml: no setting 'workrs': did you mean 'workers'?",
        'data = "rows.svm"\n[stop]\nepoch = 3\n': "job.toml: no setting stop.epoch: did you mean 'stop.epochs'?",
        'data = "rows.svm"\nmodel = "hinj"\n': "job.toml: model.net: no 'hinj': did you mean 'hinge'?",
        'data = "rows.svm\n': "job.toml is no TOML: ",
    }
    for text, says in cases.items():
        Path("job.toml").write_text(text)
        assert refused("job.toml").startswith(says)
    Path("job.toml").unlink()
    assert (
        refused("job.toml") == "cannot read job.toml: No such file or directory: give a job file (TOML) or a data set"
    )


# ---------------------------------------------------------------- a run


JOB = """
data = "rows.svm"
model = "hinge"
workers = 3
seed = 7

[strategy]
name = "bounded"
max_delay = 2

[update]
rule = "adagrad"
l1 = 1e-4

[stop]
epochs = 2

[launch]
how = "threads"
"""


@pytest.mark.slow
def test_a_job_file_is_run_and_the_job_in_effect_reads_back(home: Path) -> None:
    Path("JOB.toml").write_text(JOB)
    ended = call("train", "JOB.toml", "--set", "data.batch=10", "--out", "run")
    assert ended.exit_code == 0, ended.output
    run = shoal.Run.load("run")
    assert run.job == Job.load(Path("run/job.toml")) == Job.load(Path("JOB.toml"), {"data.batch": 10})
    assert run.job.workers == 3 and run.job.data.batch == 10 and run.job.update.l1 == 1e-4
    assert (run.summary["strategy"], run.summary["model"], run.summary["stopped_because"]) == (
        "bounded", "hinge", "2 epochs done"
    )  # fmt: skip
    again = call("train", "run/job.toml", "--out", "again")
    assert again.exit_code == 0, again.output
    assert Path("again/job.toml").read_bytes() == Path("run/job.toml").read_bytes()


def test_json_is_one_object_and_nothing_else(home: Path) -> None:
    ended = call("train", "rows.svm", *QUICK, "--json")
    assert ended.exit_code == 0
    told = json.loads(ended.stdout)
    folder = told.pop("folder")
    assert told == json.loads(Path(folder, "summary.json").read_bytes())
    assert Path(folder) == home / "runs" / "rows-logistic-async-1"


@pytest.mark.slow
def test_a_loss_that_ran_away_fails_and_is_still_json(home: Path) -> None:
    far = ("--model", "squared", "--set", "update=sgd", "--set", "update.step=1e30", "--set", "data.batch=10")
    ended = call("train", "rows.svm", *QUICK, *far, "--json")
    assert ended.exit_code == 1 and "take a smaller step" in ended.output
    text = (home / "runs" / "rows-squared-async-1" / "summary.json").read_text()
    told = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert told["failed"] and "take a smaller step" in told["stopped_because"]


def test_run_folders_get_fresh_numbers(home: Path) -> None:
    (home / "runs" / "rows-logistic-async-2").mkdir(parents=True)  # somebody else's
    for _ in range(2):
        assert call("train", "rows.svm", *QUICK).exit_code == 0
    assert sorted(os.listdir("runs")) == [f"rows-logistic-async-{number}" for number in (1, 2, 3)]
    assert os.listdir("runs/rows-logistic-async-2") == []


def test_a_long_name_of_a_file_makes_a_short_one_of_the_folder(home: Path) -> None:
    Path("y" * 250).write_text(ROWS)
    assert call("train", "y" * 250, *QUICK).exit_code == 0
    assert os.listdir("runs") == ["y" * 64 + "-logistic-async-1"]


def test_a_folder_that_is_in_use_is_refused_and_left_alone(home: Path) -> None:
    assert call("train", "rows.svm", *QUICK, "--out", "run").exit_code == 0
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    assert refused("rows.svm", *QUICK, "--out", "run") == (
        "run has a run in it already: choose another folder, or remove it"
    )
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before
    assert refused("rows.svm", *QUICK, "--out", "rows.svm/run").endswith("choose another folder (--out)")


# ---------------------------------------------------------------- data


def test_data_list_says_what_can_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    text, listed = call("data", "list"), json.loads(call("data", "list", "--json").stdout)
    assert [one["name"] for one in listed] == [
        "clicks",
        "rcv1-like",
        "rcv1",
        "a9a",
        "criteo_tb",
        "criteo_kaggle",
        "mnist",
        "digits",
    ]
    assert all(set(one) == {"name", "what", "available", "where"} for one in listed)
    assert [one["name"] for one in listed if one["available"] and one["name"] != "digits"] == ["clicks", "rcv1-like"]
    for one in listed:
        assert one["name"] in text.stdout and one["what"] in text.stdout
    assert f"not here: put it at {tmp_path}/a9a/a9a.xz" in text.stdout and "made when asked for" in text.stdout


def test_made_rows_are_trained_on_and_the_same_seed_gives_the_same_bytes(home: Path) -> None:
    for name, seed in (("x.svm.gz", 0), ("y.svm.gz", 0), ("z.svm.gz", 1)):
        ended = call("data", "make", "clicks", name, "--rows", "1000", "--seed", str(seed))
        assert ended.exit_code == 0 and ended.stdout.startswith("1,000 rows, ")
        assert ended.stdout.endswith(f"train on it: shoal train {name}\n")
    assert Path("x.svm.gz").read_bytes() == Path("y.svm.gz").read_bytes() != Path("z.svm.gz").read_bytes()
    ended = call("train", "x.svm.gz", *QUICK)
    assert ended.exit_code == 0, ended.output
    run = shoal.Run.load("runs/x-logistic-async-1")
    assert run.summary["data"] == "x.svm.gz" and 0 < run.summary["test_loss"] < 1


def test_rows_are_not_written_over_what_is_no_file(home: Path) -> None:
    os.mkfifo("pipe")
    for path, says in (("pipe", "it is no regular file"), ("no/such/x.svm", "No such file or directory")):
        ended = call("data", "make", "clicks", path, "--rows", "10")
        assert ended.exit_code == 2 and f"cannot write {path}: {says}" in ended.stderr
        assert ended.stderr.endswith("choose another path\n")
    assert Path("pipe").is_fifo()  # in an old bug, a file replaced a device
    assert sorted(os.listdir()) == ["pipe", "rows.svm"]
    ended = call("data", "make", "clik", "x.svm")
    assert ended.exit_code == 2 and "no synthetic set 'clik': there are clicks and rcv1-like" in ended.stderr


# ---------------------------------------------------------------- several at once


@pytest.mark.slow
def test_two_that_want_the_same_folder_one_gets_it_the_other_is_told(home: Path) -> None:
    both = [start("train", "rows.svm", *QUICK, "--out", "run") for _ in range(2)]
    told = [process.communicate(timeout=120) for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], told
    (loser,) = (said for process, said in zip(both, told, strict=True) if process.returncode == 2)
    # The other run is still running, or has just ended.
    assert loser[0] == b"" and b"Error: run has a run in it already" in loser[1]
    assert b": choose another folder, or " in loser[1].splitlines()[-1]
    assert shoal.Run.load("run").summary["stopped_because"] == "1 epoch done"


@pytest.mark.slow
def test_two_that_name_no_folder_get_one_each(home: Path) -> None:
    both = [start("train", "rows.svm", *QUICK) for _ in range(2)]
    for process in both:
        finish(process)
    assert sorted(os.listdir("runs")) == ["rows-logistic-async-1", "rows-logistic-async-2"]
    for name in os.listdir("runs"):
        assert shoal.Run.load(Path("runs", name)).model is not None


def test_many_that_ask_for_a_number_at_the_same_moment_all_get_another(tmp_path: Path) -> None:
    together, got = threading.Barrier(8), []

    def ask() -> None:
        for turn in range(5):
            together.wait(30)
            folder = RunFolder.numbered(tmp_path / "runs" / "run", Job())
            # Some never begin, and remove their folders.
            if turn % 2:
                folder.discard()
            else:
                got.append(folder.path.name)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(got) == len(set(got)) == 24 == len(os.listdir(tmp_path / "runs"))


def test_a_folder_is_refused_while_somebody_makes_it_and_free_when_they_gave_up(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "a" / "b" / "run", Job())
    with pytest.raises(Invalid, match="has a run in it already"):
        RunFolder(tmp_path / "a" / "b" / "run", Job())
    (tmp_path / "a" / "notes.txt").write_text("mine")
    first.discard()
    # Only folders that were made for the run are removed.
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["notes.txt"]


# ---------------------------------------------------------------- Ctrl-C


def test_ctrl_c_while_rows_are_packed_ends_at_once_and_leaves_nothing(home: Path, cache: Path, den: Den) -> None:
    before = set(cache.iterdir()) if cache.exists() else set()
    long = ("--set", "data.rows=50000000")
    child = den.start("-m", "shoal", "train", "clicks", "--out", str(home / "runs" / "run"), *long)
    assert soon(lambda: cache.exists() and set(cache.iterdir()) - before)
    os.killpg(child.pid, signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    assert child.returncode in INTERRUPTED, errors
    assert out == "" and errors.endswith("interrupted\n") and "Traceback" not in errors
    assert set(cache.iterdir()) == before and not (home / "runs").exists()
    assert den.is_empty(), den.left()


@pytest.mark.slow
def test_ctrl_c_while_it_trains_ends_all_processes_and_the_folder_says_so(home: Path, den: Den) -> None:
    endless = ("--set", "stop.seconds=300", "--workers", "2", "--servers", "2")
    child = den.start("-m", "shoal", "train", str(home / "rows.svm"), "--out", str(home / "run"), *endless)
    events = home / "run" / "events.jsonl"
    assert soon(lambda: events.exists() and b'"number":1,' in events.read_bytes(), 60)
    os.killpg(child.pid, signal.SIGINT)  # to all processes, as a terminal does
    out, errors = child.communicate(timeout=60)
    assert child.returncode in INTERRUPTED, errors
    assert out == "" and "Traceback" not in errors
    said = f"interrupted; what was learned so far is in {home}/run; go on with it: shoal train --resume {home}/run\n"
    assert errors.endswith(said)
    run = shoal.Run.load(home / "run")
    assert run.summary["stopped_because"] == "interrupted" and run.summary["failed"] and run.model is not None
    assert [event.why for event in read_run(events) if isinstance(event, Stopped)] == ["interrupted"]
    assert den.is_empty(), den.left()


# ---------------------------------------------------------------- streams


@pytest.mark.slow
def test_without_a_terminal_there_are_plain_lines_and_the_summary_is_on_its_own(home: Path) -> None:
    out, errors = finish(start("train", "rows.svm", *QUICK))
    assert "\x1b" not in out + errors and "\r" not in out + errors
    assert re.fullmatch(
        r"result     test loss 0\.\d{4}, accuracy [\d.]+, auc [\d.]+ \(1 epoch done\)\n"
        r"best       test loss 0\.\d{4} at epoch [\d.]+: .*\n"
        r"speed      \d+ rows in .* s(, evaluated after .* s)?, [\d,]+ rows/s, \d+ steps\n"
        r"(cost       .*\n)?(staleness  .*\n)?"
        r"next       .*\n"
        r"look at    .*/runs/rows-logistic-async-1.*\n",
        out,
    )
    assert errors.splitlines()[0] == "packing rows.svm" and "stopped: 1 epoch done" in errors.splitlines()[-1]


@pytest.mark.slow
def test_a_reader_that_goes_away_costs_nothing_but_the_reading(home: Path) -> None:
    for number, read in enumerate((True, False), 1):
        process = start("train", "rows.svm", *QUICK)
        assert process.stdout is not None and process.stderr is not None
        if read:
            assert process.stdout.readline().startswith(b"result")
        process.stdout.close()
        errors = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait(60) in (0, 1)
        assert "Traceback" not in errors and "Exception ignored" not in errors, errors
        assert shoal.Run.load(f"runs/rows-logistic-async-{number}").model is not None


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-", "1>/dev/full"])
def test_streams_that_are_closed_or_full_do_not_stop_a_run(home: Path, closed: str) -> None:
    if "full" in closed and not Path("/dev/full").is_char_device():
        pytest.skip("there is no /dev/full here")
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "shoal", "train", "rows.svm", *QUICK]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr, ended.stderr
    if "full" in closed:
        folder = home / "runs" / "rows-logistic-async-1"
        assert ended.returncode == 1
        assert ended.stderr.endswith(
            f"Error: cannot print the figures (No space left on device): they are in {folder}\n"
        )
    else:
        assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("result") == (closed == "2>&-")
    assert shoal.Run.load("runs/rows-logistic-async-1").model is not None


# ---------------------------------------------------------------- paths and locales


@pytest.mark.slow
def test_a_path_with_spaces_and_letters_of_any_language_works(home: Path) -> None:
    folder = home / "meine Läufe"
    folder.mkdir()
    (folder / "Grüße 数据.svm").write_text(ROWS)
    arguments = ("train", "meine Läufe/Grüße 数据.svm", *QUICK, "--out", "meine Läufe/ein Lauf")
    out, _ = finish(start(*arguments, LC_ALL="C"))
    assert "meine Läufe/ein Lauf" in out
    run = shoal.Run.load(folder / "ein Lauf")
    assert run.job.data.source == "meine Läufe/Grüße 数据.svm" and run.summary["data"] == "Grüße 数据.svm"


@pytest.mark.slow
def test_where_no_language_is_known_plain_names_work_and_others_are_refused(home: Path) -> None:
    # Switch off Python's own handling of such a locale.
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    finish(start("train", "rows.svm", *QUICK, "--out", "run", **bare))
    assert shoal.Run.load("run").model is not None
    (home / "Grüße.svm").write_text(ROWS)
    _, errors = finish(start("train", "Grüße.svm", *QUICK, **bare), code=2)
    assert errors.endswith("is not UTF-8: rename it, or choose a UTF-8 locale\n")
    assert not (home / "runs").exists()


@pytest.mark.slow
def test_without_matplotlib_it_trains_and_says_how_to_get_the_picture(home: Path) -> None:
    code = "import sys; sys.modules['matplotlib'] = None"
    out, errors = finish(start("train", "rows.svm", *QUICK, "--out", "run", code=code))
    assert "shoal: no loss.png: " in errors and "pip install 'shoal[view]'" in errors
    assert out.endswith(f"look at    {home}/run\n") and not (home / "run" / "loss.png").exists()
    assert shoal.Run.load("run").model is not None


def test_what_is_typed_is_what_a_program_would_call(home: Path) -> None:
    told: list[Any] = []
    run = shoal.train(
        "rows.svm", strategy="sync", epochs=1, settings={"launch.how": "threads"}, out="one", progress=told.append
    )
    assert call("train", "rows.svm", "--strategy", "sync", *QUICK, "--out", "two").exit_code == 0
    other = shoal.Run.load("two")
    assert other.job == run.job and other.model is not None and run.model is not None
    assert other.model.table.tobytes() == run.model.table.tobytes()


# ---------------------------------------------------------------- verbosity


@pytest.mark.slow
def test_verbosity_chooses_how_much_is_told_and_the_folder_has_it_all(home: Path) -> None:
    told = {}
    for level in range(4):
        ended = call("train", "rows.svm", *QUICK, "--verbosity", str(level), "--out", f"run-{level}")
        assert ended.exit_code == 0, ended.output
        told[level] = ended.stderr.splitlines()
        assert bool(ended.stdout) == (level > 0)  # level 0 prints errors only, not the figures
    assert told[0] == []
    assert len(told[1]) < len(told[2]) < len(told[3])
    assert any("worker-0 joined" in line for line in told[2]) and not any("joined" in line for line in told[1])
    assert any(re.search(r"spans? \(", line) for line in told[3])
    for level in range(4):
        log, events = Path(f"run-{level}/log.txt").read_text().splitlines(), read_run(Path(f"run-{level}/events.jsonl"))
        assert log[-1].partition("stopped: ")[2].startswith("1 epoch done") and any("joined" in line for line in log)
        assert (len(log) == len(events)) == (level == 3)  # only level 3 logs every event


def test_verbosity_0_leaves_the_json_and_errors(home: Path) -> None:
    ended = call("train", "rows.svm", *QUICK, "--verbosity", "0", "--json")
    assert json.loads(ended.stdout)["examples"] > 0 and ended.stderr == ""
    assert refused("rows.svm", "--verbosity", "0", "--set", "workers=0").startswith("workers=0")


def test_a_finished_run_without_a_checkpoint_is_not_begun_anew(home: Path) -> None:
    call("train", "rows.svm", *QUICK, "--out", "run")
    before = Path("run/model.safetensors").read_bytes()
    again = call("train", "--resume", "run", "--epochs", "2")
    assert again.exit_code == 2 and "is finished, and has no checkpoint to go on from" in again.stderr
    assert Path("run/model.safetensors").read_bytes() == before


def test_verbosity_is_a_setting_of_a_job_and_may_change_when_a_run_goes_on(home: Path) -> None:
    Path("job.toml").write_text('data = "rows.svm"\nverbosity = 2\n')
    assert "worker-0 joined" in call("train", "job.toml", *QUICK).stderr

    def interrupt(training: ServerRun) -> None:
        assert soon(lambda: training.course.done)
        raise KeyboardInterrupt  # this saves

    with pytest.raises(KeyboardInterrupt):
        endless = {"data": "rows.svm", "verbosity": 2, "stop": {"epochs": 1e9}, "launch": {"how": "threads"}}
        execute(Job.of(endless), Path("run"), started=interrupt)
    again = call("train", "--resume", "run", "--epochs", "1", "--verbosity", "0")
    assert (again.exit_code, again.output) == (0, "")
    assert Path("run/log.txt").read_text().count("stopped: ") == 2
    assert (
        refused("job.toml", "--set", "verbosity=4") == "job.toml: verbosity=4: needs 0 (errors only) to 3 (every event)"
    )
