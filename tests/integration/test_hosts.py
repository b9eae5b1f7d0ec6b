"""Commands start nodes on several hosts: what starts where, and how each node ends.

They also test what nodes know of each other. Two "hosts" are two loopback addresses; real hosts,
and partitions between them, are in tests/network.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError
from shoal.events import Joined, Warned, read_run
from shoal.inspect.status import look_at
from tests.support.sandbox import Den, soon

ENDLESS = ("--epochs", "1e6", "--set", "evaluate.every=5")


@pytest.fixture
def address() -> Iterator[str]:
    """Yield an address that nobody uses yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield f"tcp://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.svm", 600)


def write_rows(path: Path, number: int, shift: int = 0) -> Path:
    draw = np.random.default_rng(shift)
    lines = []
    for row in range(number):
        columns = sorted(draw.choice(50, 6, replace=False) + 1)
        sign = 1 if columns[0] + shift < 6 else -1
        lines.append(f"{sign if row > 1 else 1 - 2 * row} " + " ".join(f"{column}:1" for column in columns))
    path.write_text("\n".join(lines) + "\n")
    return path


def command(den: Den, *words: str | Path) -> subprocess.Popen[str]:
    return den.start(*shoal_with(*words))


def shoal_with(*words: str | Path) -> list[str]:
    return ["-m", "shoal", *map(str, words)]


def members(address: str, role: str) -> list[str]:
    looking = look_at(address)
    try:
        return [one.name for one in looking.look(1.0).members if one.role == role]
    except ShoalError:
        return []
    finally:
        looking.close()


def steps(address: str) -> int:
    looking = look_at(address)
    try:
        course = looking.look(1.0).course
        return 0 if course is None else course.steps
    except ShoalError:
        return 0
    finally:
        looking.close()


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=90)
    assert process.returncode == code, (out, err)
    return out, err


@pytest.mark.slow
def test_a_run_whose_nodes_come_from_elsewhere_ends_for_all_of_them(
    den: Den, address: str, rows: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    one = command(den, "launch", "worker", "--at", address)  # in any order
    servers = command(den, "launch", "server", "--at", address, "--listen", "tcp://127.0.0.2", "--count", "2")
    main = command(
        den, "launch", "coordinator", rows, "--listen", address, "--servers", "2", "--workers", "2", "--set", "data.batch=8",
        "--epochs", "3", "--out", folder, "--json",
    )  # fmt: skip
    other = command(den, "launch", "worker", "--at", address, "--name", "other")
    out, _ = ended(main)
    assert json.loads(out)["steps"] > 0 and not json.loads(out)["failed"]
    for process in (one, other, servers):
        out, _ = ended(process)
        assert "the run is over" in out
    names = [event.name for event in read_run(folder / "events.jsonl") if isinstance(event, Joined)]
    assert len([name for name in names if name.startswith("server-")]) == 2 and "other" in names
    assert not (folder / "address").exists()
    assert den.is_empty()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
def test_a_coordinator_that_is_started_again_goes_on_with_those_who_are_still_there(
    number: signal.Signals, den: Den, address: str, rows: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = command(den, "launch", "coordinator", rows, "--listen", address, *ENDLESS, "--out", folder)
    server = command(den, "launch", "server", "--at", address, "--name", "held")
    worker = command(den, "launch", "worker", "--at", address, "--name", "busy")
    assert soon(lambda: steps(address) > 20)
    looking = look_at(address)
    before = {one.name: one.incarnation for one in looking.look().members}
    first.send_signal(number)
    first.communicate(timeout=90)
    again = command(den, "launch", "coordinator", "--out", folder, "--set", "stop.seconds=1e6")
    assert soon(lambda: "evaluator" in {one.name for one in _members(looking)})
    after = {one.name: one.incarnation for one in looking.look(10.0).members}
    # No node has joined again.
    assert (after["held"], after["busy"]) == (before["held"], before["busy"])
    done = steps(address)
    assert soon(lambda: steps(address) > done)
    looking.close()
    again.send_signal(signal.SIGINT)  # a user ends it, and all nodes learn that
    ended(again, 130)
    for process in (server, worker):
        out, _ = ended(process)
        assert "its owner has ended it" in out
    assert den.is_empty()


@pytest.mark.slow
def test_a_server_whose_host_lacks_the_runs_folder_makes_checkpoints_fail_with_the_reason_and_the_run_goes_on(
    den: Den, address: str, rows: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # The folder is empty there.
    elsewhere = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none "$0" && exec "$@"',
        str(home),
    )
    if subprocess.run([*elsewhere, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process may have mounts of its own here")
    main = command(
        den, "launch", "coordinator", rows, "--listen", address, *ENDLESS, "--set", "checkpoint.every=0.2",
        "--out", home / "run",
    )  # fmt: skip
    far = den.start(*shoal_with("launch", "server", "--at", address, "--name", "far"), within=elsewhere)
    worker = command(den, "launch", "worker", "--at", address)

    def warned() -> list[str]:
        events = home / "run" / "events.jsonl"
        found = [one.what for one in read_run(events) if isinstance(one, Warned)] if events.exists() else []
        return [what for what in found if f"far cannot write to {home / 'run' / 'checkpoints'}/0000000" in what]

    assert soon(lambda: warned() != [] or main.poll() is not None)
    for what in warned():
        assert what.startswith("no checkpoint was saved: far cannot write") and "the next try is in" in what
        assert "No such file or directory" in what and "share it, or --set checkpoint.every=inf" in what
    assert warned()
    done = steps(address)
    assert soon(lambda: steps(address) > done + 20)
    # Nothing looks like a complete checkpoint.
    assert not list((home / "run").glob("checkpoints/*/*.json"))
    main.send_signal(signal.SIGINT)
    ended(main, 130)
    for process in (far, worker):
        ended(process)
    assert den.is_empty()


def _members(looking: object) -> list[object]:
    try:
        return list(looking.look(1.0).members)  # type: ignore[attr-defined]
    except ShoalError:
        return []


@pytest.mark.slow
def test_rows_that_differ_are_an_error_here_and_a_warning_there(
    den: Den, address: str, rows: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    main = command(den, "launch", "coordinator", rows, "--listen", address, *ENDLESS, "--out", folder)
    command(den, "launch", "server", "--at", address)
    assert soon(lambda: members(address, "evaluator"))
    fewer = write_rows(tmp_path / "fewer.svm", 500)
    others = write_rows(tmp_path / "others.svm", 600, shift=1)
    refused = {
        "of them are not there": (tmp_path / "nowhere.svm", "nowhere.svm"),
        "there are fewer": (fewer, "rows of 50 features here, 528 of 50 there"),
        "there are as many others": (others, "as many rows and features, but other contents"),
    }
    workers = {
        name: command(den, "launch", "worker", "--at", address, "--data", path) for name, (path, _) in refused.items()
    }
    for name, worker in workers.items():
        _, err = ended(worker, 2)
        assert refused[name][1] in err, err
    assert soon(lambda: sum("cannot take part" in text for text in told(folder)) == len(refused))
    main.send_signal(signal.SIGINT)
    ended(main, 130)


def told(folder: Path) -> list[str]:
    if not (folder / "events.jsonl").exists():
        return []
    return [event.what for event in read_run(folder / "events.jsonl") if isinstance(event, Warned)]


def test_code_that_a_run_names_is_not_imported_elsewhere_unless_the_operator_there_names_it(
    den: Den, address: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11: the operator of a host decides which code is imported there."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(shoal.__file__).parents[1]}")
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('x')\n")
    run = ("--listen", address, "--set", 'launch.modules=["theirs"]', *ENDLESS, "--out", tmp_path / "run")
    main = command(den, "launch", "coordinator", rows, *run)
    assert soon(lambda: members(address, "client") or look_once(address))
    (tmp_path / "imported").unlink(missing_ok=True)
    for role in ("server", "worker"):
        _, err = ended(command(den, "launch", role, "--at", address), 2)
        assert "the run needs" in err and "--modules theirs" in err
    assert not (tmp_path / "imported").exists()
    willing = command(den, "launch", "server", "--at", address, "--modules", "theirs", "--name", "willing")
    assert soon(lambda: members(address, "server") == ["willing"])
    assert (tmp_path / "imported").exists()
    main.send_signal(signal.SIGINT)
    main.communicate(timeout=60)
    willing.communicate(timeout=60)


def look_once(address: str) -> bool:
    looking = look_at(address)
    try:
        looking.look(0.5)
        return True
    except ShoalError:
        return False
    finally:
        looking.close()


@pytest.mark.slow
def test_a_store_is_used_by_a_program_and_outlives_its_coordinator(den: Den, address: str, tmp_path: Path) -> None:
    words = ("launch", "coordinator", "--listen", address, "--servers", "2", "--out", tmp_path / "store")
    main = command(den, *words)
    servers = command(den, "launch", "server", "--at", address, "--count", "2")
    assert soon(lambda: len(members(address, "server")) == 2)
    with shoal.connect(address) as kv:
        kv.create("w", shoal.Dense(rows=1_000))
        kv.push("w", slice(None), np.ones(1_000, np.float32)).result(20)
        main.send_signal(signal.SIGTERM)
        _, err = main.communicate(timeout=60)
        assert main.returncode == 143, err
        # No push or pull needs the coordinator.
        kv.push("w", slice(None), np.ones(1_000, np.float32)).result(20)
        main = command(den, *words)
        assert soon(lambda: len(members(address, "server")) == 2)
        assert kv.pull("w", slice(None)).result(20).min() == 2
    lines = command(den, "status", tmp_path / "store", "--watch")
    assert lines.stdout is not None and "2 servers" in lines.stdout.readline()
    lines.send_signal(signal.SIGINT)
    ended(lines)
    main.send_signal(signal.SIGINT)
    ended(main, 130)
    ended(servers)


@pytest.mark.slow
def test_a_store_of_which_nobody_is_left_comes_back_as_it_was_saved(den: Den, address: str, tmp_path: Path) -> None:
    words = ("launch", "coordinator", "--listen", address, "--servers", "1", "--out", tmp_path / "store")
    main, server = command(den, *words), command(den, "launch", "server", "--at", address)
    assert soon(lambda: len(members(address, "server")) == 1)
    with shoal.connect(address) as kv:
        kv.create("w", shoal.Sparse(keys=1_000, update=shoal.AdaGrad(step=0.5)))
        kv.push("w", [1, 900], np.ones(2, np.float32)).result(20)
        saved = kv.pull("w", [1, 900]).result(20).tolist()
        kv.save(60)
        kv.push("w", [1], np.ones(1, np.float32)).result(20)  # not in the checkpoint
    main.send_signal(signal.SIGINT)
    ended(main, 130)
    ended(server)
    main, server = command(den, *words), command(den, "launch", "server", "--at", address)
    said = ""
    assert main.stderr is not None
    while "as saved in" not in said:
        said = main.stderr.readline()
        assert said, "it ended"
    with shoal.connect(address) as kv:
        assert kv.pull("w", [1, 900]).result(20).tolist() == saved
        kv.push("w", [1, 900], np.ones(2, np.float32)).result(20)
    main.send_signal(signal.SIGINT)
    ended(main, 130)
    ended(server)


@pytest.mark.slow
def test_nodes_whose_coordinator_is_gone_for_good_end_and_say_so(den: Den, address: str, rows: Path) -> None:
    main = command(den, "launch", "coordinator", rows, "--listen", address, *ENDLESS, "--out", den.folder / "run")
    nodes = [command(den, "launch", role, "--at", address, "--patience", "6") for role in ("server", "worker")]
    assert soon(lambda: steps(address) > 1)
    main.kill()
    for node in nodes:
        _, err = ended(node, 1)
        waits, end = err.splitlines()[-2:]
        assert f"has heard nothing from the coordinator at {address} for 3 s: it waits 3 s more" in waits, err
        assert "the coordinator has said nothing for 6 s" in end and "start" in end


@pytest.mark.slow
def test_nodes_whose_coordinator_comes_back_say_so(den: Den, address: str) -> None:
    words = ("launch", "coordinator", "--listen", address, "--out", den.folder / "store")
    main = command(den, *words)
    server = command(den, "launch", "server", "--at", address, "--patience", "60")
    assert soon(lambda: members(address, "server"))
    main.kill()
    assert server.stderr is not None
    heard = iter(server.stderr.readline, "")  # it ends by itself if no coordinator returns
    assert any("has heard nothing from the coordinator" in line for line in heard)
    command(den, *words)
    assert any("hears the coordinator again, and goes on" in line for line in heard)


@pytest.mark.slow
def test_the_last_server_stays_until_it_is_told_twice(den: Den, address: str) -> None:
    command(den, "launch", "coordinator", "--listen", address)
    server = command(den, "launch", "server", "--at", address, "--name", "last")
    assert soon(lambda: members(address, "server"))
    with shoal.connect(address) as kv:
        kv.create("w", shoal.Dense(rows=10))
        server.send_signal(signal.SIGTERM)
        # By then its leave is refused, which only its output would show.
        time.sleep(1.0)
        assert server.poll() is None and members(address, "server") == ["last"]
        server.send_signal(signal.SIGTERM)
        _, err = ended(server, 143)
        assert "last stays for now: last is the last server that stays" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("coordinator", "clicks", "--listen", "tcp://10.0.0.1:7000"), "there only keys are safe"),
        (("coordinator", "--listen", "tcp://0.0.0.0:7000"), "others cannot call tcp://0.0.0.0:7000"),
        (("coordinator", "clicks"), "say where to listen (--listen"),
        (("coordinator", "clicks", "--strategy", "gossip", "--listen", "tcp://127.0.0.1:7000"), "no servers that could come"),
        (("coordinator", "--workers", "3", "--listen", "tcp://127.0.0.1:7000"), "a store trains nothing (--workers)"),
        (("server", "--at", "tcp://10.0.0.1:7000"), "there only keys are safe"),
        (("worker", "--at", "nowhere"), "is neither a run's folder nor an address"),
        (("worker", "--at", "tcp://127.0.0.1:1", "--count", "2", "--name", "one"), "--name names one node"),
    ],
)  # fmt: skip
def test_what_cannot_be_launched_is_refused_with_the_next_move(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from shoal.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_KEYS", str(tmp_path / "none"))
    done = CliRunner().invoke(main, ["launch", *words])
    assert (done.exit_code, said in done.output) == (2, True), done.output
    assert not any(tmp_path.rglob("job.toml"))
