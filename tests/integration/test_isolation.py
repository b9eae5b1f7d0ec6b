"""The test session undoes what it inherits and fails a test that leaves something.

A time limit really ends its test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.isolation import command_of, family

ROOT = Path(__file__).parents[2]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.harness import isolation
isolation.GONE_WITHIN, isolation._GRACE, isolation._TRIES = 0.5, 1.0, 2
isolation.reset_inherited()

def pytest_configure(config):
    config.pluginmanager.register(isolation.Isolation(), "isolation")
"""

LEAVES = """
import subprocess, sys, pytest, os, time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
ORPHAN = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"

@pytest.fixture(scope="module")
def shared():
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()

def test_leaves_a_child(shared):
    subprocess.Popen(SLEEP)

def test_leaves_an_orphan(shared):
    subprocess.run([sys.executable, "-c", ORPHAN], check=True)

def test_leaves_nothing(shared):
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert shared.poll() is None
"""

TOO_LONG = """
import ctypes, subprocess, sys, time

SPINS = [sys.executable, "-c", "import signal\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: pass"]

def test_waits_for_a_child_that_spins():
    with subprocess.Popen(SPINS):  # leaving the block waits, too
        time.sleep(600)

def test_passes():
    pass
"""

STUCK = """
import contextlib, ctypes, subprocess, sys, time

def test_it():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left behind"])
    while True:
        {how}
"""
WAYS = {
    "takes no exception": "with contextlib.suppress(BaseException): time.sleep(600)",
    "keeps the interpreter's lock in C": "ctypes.PyDLL(None).sleep(600)",
}

INHERITS = """
import os, resource, signal, subprocess, sys

def test_signals_of_a_child_are_the_default():
    code = "import signal; print([int(signal.getsignal(n)) for n in (signal.SIGHUP, signal.SIGTERM)], signal.getsignal(2))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert told.startswith("[0, 0] <built-in function default_int_handler>"), told
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode == 3  # SIGCHLD is not ignored

def test_variables_are_gone():
    assert not {"COLUMNS", "NO_COLOR", "PYTHONOPTIMIZE", "WORLD_SIZE", "SHOAL_KEYS"} & set(os.environ)
    assert os.environ["LANG"] == "C.UTF-8"

def test_files_are_as_always(tmp_path):
    (tmp_path / "file").write_text("\\u00e4")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "file").read_bytes() == b"\\xc3\\xa4"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
"""


def session(folder: Path, test: str, *words: str, shell: str = "", **variables: str) -> str:
    """Run a pytest session on one file, and return its output."""
    (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *words, "test_it.py"]
    if shell:
        command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *command]
    ran = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "COLUMNS": "200", **variables},
    )
    return ran.stdout + ran.stderr


def test_a_leftover_fails_its_own_test_and_no_other(tmp_path: Path) -> None:
    told = session(tmp_path, LEAVES)
    assert "3 passed, 2 errors" in told, told
    for name in ("test_leaves_a_child", "test_leaves_an_orphan"):
        assert (
            f"ERROR at teardown of {name}" in told
            and f"ERROR test_it.py::{name} - AssertionError: this test left" in told
        )


def test_a_test_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    told = session(tmp_path, TOO_LONG, "--timeout=2")
    assert "1 failed, 1 passed" in told, told
    assert "took longer than 2 s; its processes were killed" in told


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_test_that_cannot_be_interrupted_ends_with_its_process_and_its_children(tmp_path: Path, way: str) -> None:
    told = session(tmp_path, STUCK.format(how=WAYS[way]), "--timeout=2", "-n1")
    assert "crashed while running 'test_it.py::test_it'" in told, told
    assert not [pid for pid, _ in family() if "left behind" in command_of(pid)]


@pytest.mark.parametrize(
    "how", ["trap '' HUP", "trap '' INT CHLD TERM", "umask 077; ulimit -Sn 256"], ids=["nohup", "&", "limits"]
)
def test_what_a_session_inherits_is_undone(tmp_path: Path, how: str) -> None:
    variables = {"COLUMNS": "20", "NO_COLOR": "1", "PYTHONOPTIMIZE": "1", "WORLD_SIZE": "2", "SHOAL_KEYS": "/nowhere"}
    told = session(tmp_path, INHERITS, shell=how, LC_ALL="C", **variables)
    assert "3 passed" in told, told
