"""A pytest plugin lets every test begin alike, and keeps tests from harming each other.

``reset_inherited`` undoes what the session inherited: ignored signals (nohup, a background job of a
script), the umask, locale, limits, and variables that change how programs behave.

``Isolation`` looks after each test. A process that a test leaves behind fails that test, and is
killed; one that a fixture of a wider scope started belongs to that fixture. A test past its time
limit fails and its processes are killed, also if its main thread is stuck in C or waits for a child
in a ``finally``.

Processes are found by their descent from this process or, where their parents died, by a token in
their environment. They are never looked for by name: another session on the same machine is left
alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import locale
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, TextIO

import pytest

TOKEN = "SHOAL_TEST_SESSION"
GONE_WITHIN = 10.0  # seconds: processes of a cluster that ends may take that long (F43)
# Seconds that a test has, after its limit, to run its finally blocks and fixtures' teardown.
_GRACE = 30.0
_TRIES = 4  # times that it is interrupted; then this process ends

_STARTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "tests.support.start"))
# Python's own helpers live as long as the session.
_OURS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

# These change how programs under test, and Python itself, behave. PYTHONPATH is kept, because this
# session may need it to find its modules.
_VARIABLES = frozenset(
    [
        "COLUMNS",
        "LINES",
        "TERM",
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
        "TZ",
        "LANGUAGE",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    ]
)
_PREFIXES = ("PYTHON", "LC_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "SHOAL_")
_KEPT = ("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE", "SHOAL_DATA", "SHOAL_CACHE")


def reset_inherited() -> None:
    """Undoes what the session inherited from the shell, nohup or a service manager.

    It must be called before any process is started.
    """
    ignored = [
        number
        # Python ignores these two itself.
        for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    if {signal.SIGHUP, signal.SIGINT} & set(ignored):
        # The terminal's signals are meant for others. In a session of our own neither we nor
        # programs under test receive them, so default handlers are safe.
        with contextlib.suppress(PermissionError):  # we lead a group already
            os.setsid()
    for number in ignored:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    before = os.environ.get(TOKEN)
    for name in list(os.environ):
        if name in _VARIABLES or (name.startswith(_PREFIXES) and name not in _KEPT):
            del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "C.UTF-8")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    session = before if worker and before else f"{os.getpid()}-{time.monotonic_ns()}"
    os.environ[TOKEN] = f"{session}.{worker}" if worker else session
    _raise_limits()


def _raise_limits() -> None:
    """Raises soft limits to the hard ones, forbids core files, and allows 20,000 files."""
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 20_000 if hard == resource.RLIM_INFINITY else min(20_000, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


Process = tuple[int, str]  # pid and start time: a pid may be reused


def family(worker: str = "") -> dict[Process, int]:
    """Returns all living processes that we started, directly or not, with their parents' pids.

    With ``worker`` it returns those that this xdist worker of ours started.
    """
    me, token = os.getpid(), f"{TOKEN}={os.environ[TOKEN]}{'.' if worker else ''}{worker}".encode()
    every: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
                if fields[0] not in b"ZX":
                    every[int(name)] = int(fields[1]), fields[19].decode()
    found: dict[Process, int] = {}
    known = {me: True}

    def is_ours(pid: int) -> bool:
        if pid not in known:
            known[pid] = False  # a reused pid may make a cycle
            parent = every[pid][0] if pid in every else 0
            known[pid] = is_ours(parent) if parent in every else False
        return known[pid]

    for pid, (parent, start) in every.items():
        if pid != me and ((not worker and is_ours(pid)) or _has(pid, token)):
            found[pid, start] = parent
    return {one: parent for one, parent in found.items() if not _is_python_helper(one[0])}


def _has(pid: int, token: bytes) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environment:
        return token in environment.read().split(b"\0")
    return False


def _is_python_helper(pid: int) -> bool:
    return any(helper in command_of(pid) for helper in _OURS)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command:
        return command.read().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def kill(processes: Iterable[Process]) -> None:
    for pid, _ in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class Isolation:
    """The plugin; ``tests/conftest.py`` registers it."""

    def __init__(self) -> None:
        self._starts = 0  # of processes, by any code in this process
        self._looked_at = 0
        self._owned: dict[Any, set[Process]] = {}  # what fixtures of a wider scope started
        # This is the stderr at pytest_configure, which is not captured.
        self._limit = Limit(self._of_the_test, os.fdopen(os.dup(2), "w"))
        sys.addaudithook(self._count)

    def _count(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self._starts += 1

    # -- leftovers

    def _of_the_test(self) -> dict[Process, int]:
        """Returns living processes that belong to no fixture of a wider scope."""
        living = family()
        owned = {one for processes in self._owned.values() for one in processes}
        parents = {pid: parent for (pid, _), parent in living.items()}
        tops = {pid for pid, _ in owned}

        def is_below(pid: int, steps: int = 100) -> bool:
            return pid in tops or (steps > 0 and pid in parents and is_below(parents[pid], steps - 1))

        return {one: parent for one, parent in living.items() if one not in owned and not is_below(one[0])}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        starts = self._starts
        before = set(family()) if starts else set()
        try:
            return (yield)
        finally:
            if self._starts > starts:
                others = {one for processes in self._owned.values() for one in processes}
                self._owned[fixturedef] = set(family()) - before - others

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        self._owned.pop(fixturedef, None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        result = yield
        if self._starts > self._looked_at and (left := self._left()):
            raise AssertionError(f"this test left processes behind, which were killed: {left}")
        return result

    def _left(self) -> list[str]:
        """Returns what the test still has after some seconds, and kills it."""
        deadline, pause = time.monotonic() + GONE_WITHIN, 0.002
        while (processes := self._of_the_test()) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        self._looked_at = self._starts
        told = [f"{pid} ({command_of(pid) or 'gone meanwhile'})" for pid, _ in processes]
        self._end(self._of_the_test)
        return told

    @staticmethod
    def _end(processes: Callable[[], Iterable[Process]]) -> None:
        deadline = time.monotonic() + GONE_WITHIN
        while (left := processes()) and time.monotonic() < deadline:
            kill(left)
            time.sleep(0.01)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Ends what an xdist worker has started, if it died before it could do so itself."""
        self._end(lambda: family(node.gateway.id))

    def pytest_sessionfinish(self) -> None:
        if self._starts:
            self._end(family)

    # -- the time limit

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            self._limit.disarm()

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if item.config.getoption("usepdb", False) or threading.current_thread() is not threading.main_thread():
            return None
        self._limit.arm(item.nodeid, settings.timeout)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        # This is called when a test has failed, too: its fixtures' teardown has a limit as well.
        return True if self._limit.is_armed else None

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        self._limit.arm_last_resort()  # pytest's own faulthandler plugin has just disarmed it


class Limit:
    """Ends a test that takes too long, from a thread of its own.

    It raises an exception in the test, kills its processes and, last, ends this process.
    """

    def __init__(self, processes: Callable[[], Iterable[Process]], stderr: TextIO) -> None:
        self._processes, self._stderr = processes, stderr
        self._changed = threading.Condition()
        self._test = ""
        self._until = 0.0
        self._seconds = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_armed(self) -> bool:
        return bool(self._test)

    def arm(self, test: str, seconds: float) -> None:
        with self._changed:
            self._test, self._seconds, self._until = test, seconds, time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="shoal-time-limit", daemon=True)
                self._thread.start()
            self._changed.notify()
        signal.signal(signal.SIGALRM, self._interrupted)
        self.arm_last_resort()

    def arm_last_resort(self) -> None:
        """Starts a timer that needs no lock.

        Code in C that keeps the interpreter's lock stops our thread, too.
        """
        if self._test:
            left = self._until - time.monotonic() + _GRACE * (_TRIES + 1)
            faulthandler.dump_traceback_later(max(1.0, left), exit=True, file=self._stderr)

    def disarm(self) -> None:
        if self._test:
            faulthandler.cancel_dump_traceback_later()
        with self._changed:
            self._test = ""
            self._changed.notify()

    def _interrupted(self, number: int, frame: object) -> None:
        if self._test:
            pytest.fail(f"took longer than {self._seconds:g} s; its processes were killed")

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._test or (left := self._until - time.monotonic()) > 0:
                    self._changed.wait(left if self._test else None)
                test = self._test
            self._end(test)

    def _end(self, test: str) -> None:
        print(f"\n{test}: took longer than {self._seconds:g} s, in:", file=self._stderr, flush=True)
        faulthandler.dump_traceback(self._stderr)
        for _ in range(_TRIES):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            deadline = time.monotonic() + _GRACE
            while time.monotonic() < deadline:
                kill(self._processes())
                with self._changed:
                    if self._changed.wait_for(lambda: self._test != test, 0.2):
                        return
        print(f"{test}: cannot be interrupted; this process ends", file=self._stderr, flush=True)
        kill(family())
        os._exit(70)
