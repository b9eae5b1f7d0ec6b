"""A run on ranks that shoal starts by mpirun: ``launch.how = "mpi"``.

    caller  --starts-->  mpirun  --starts-->  rank 0, rank 1, ...  (``main``)
       ^-----------events, the result-----------'

The caller keeps the folder, the log and the view; it computes nothing. Rank 0 trains and reports;
the others follow. Every rank connects to a Unix socket in a private folder, where mpirun has its
own files, too. A rank whose connection is closed, or whose mpirun is gone, ends: so nothing is
left, whichever process is killed, and the last one removes the folder.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.errors import Invalid, ShoalError, StartFailed
from shoal.events import Evaluated, RunEvent, Stopped
from shoal.job import Job
from shoal.launch.mpirun_rank import OURS, rank
from shoal.launch.process_main import ProcessMessage
from shoal.launch.process_pool import ExitReasons
from shoal.launch.serverless_pool import name_of
from shoal.launch.torchrun import is_ours
from shoal.nodes.evaluator import EvaluatedModel
from shoal.signals import deferred
from shoal.strategies.averaging.mpi import needs_mpi, take_part, world
from shoal.training.preflight import check
from shoal.training.tracked_run import RunHandle, RunStart
from shoal.training.tracker import RunResult, Tracker, result_of
from shoal.wire.messages import RunProgress

SOCKET, JOB = "socket", "job.toml"  # in the private folder
SHARED = Path("/dev/shm")
_SEGMENT = 32 << 20  # bytes of shared memory that a rank takes, at most
_PARENT = 0.5  # seconds between checks of a rank's parent
_COME_WITHIN = 60.0
_END_WITHIN = 5.0
_EVALUATE_WITHIN = 60.0  # after an interruption

EvaluatedAs = tuple[int, float, dict[str, float | None], tuple[int, ...]]  # the last is a shape


class MpiHello(ProcessMessage, frozen=True, tag="here"):
    """Rank to caller: "this is who I am"."""

    rank: int
    pid: int


class MpiProgress(ProcessMessage, frozen=True, tag="told"):
    """Rank 0 to caller: "this happened, and this is how far the run is"."""

    course: RunProgress
    event: RunEvent | None = None
    judged: EvaluatedAs | None = None  # the model that would be kept; its weights follow


class MpiLeft(ProcessMessage, frozen=True, tag="left"):
    """Rank 0 to caller: "the run is over, with this result"; weights follow."""

    outcome: dict[str, Any]
    judged: EvaluatedAs | None


class MpiFailed(ProcessMessage, frozen=True, tag="failed"):
    """Rank 0 to caller: "the run cannot be"."""

    error: str


class MpiInterrupt(ProcessMessage, frozen=True, tag="interrupt"):
    """Caller to rank 0: "end now, and evaluate what was learned"."""


MpiMessage = MpiHello | MpiProgress | MpiLeft | MpiFailed | MpiInterrupt


def send(connection: Connection, line: MpiMessage, judged: EvaluatedModel | None = None) -> None:
    connection.send_bytes(msgspec.msgpack.encode(line))
    if judged is not None:
        connection.send_bytes(np.ascontiguousarray(judged.weights).data.cast("B"))


def receive(connection: Connection) -> tuple[MpiMessage | None, EvaluatedModel | None]:
    """The next message and its model, if it has one; None if the other end is gone."""
    try:
        line = msgspec.msgpack.decode(connection.recv_bytes(), type=MpiMessage)
        if not isinstance(line, MpiProgress | MpiLeft) or line.judged is None:
            return line, None
        number, loss, metrics, shape = line.judged
        weights = np.frombuffer(bytearray(connection.recv_bytes()), np.float32).reshape(shape)
        return line, EvaluatedModel(number, weights, loss, metrics)
    except (EOFError, OSError):
        return None, None


class MpirunRun:
    def __init__(self, start: RunStart) -> None:
        self._mpirun = needs_mpi()
        job, self._listener, self._folder = start.job, start.listener, start.folder
        self.job, self.learner = job, check(job, start.dataset)
        self._resume = "" if start.resume is None else str(start.resume.path)
        self._own: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._how = ExitReasons().how
        self._ranks: dict[int, tuple[int, Connection]] = {}
        self._outcome: RunResult | None = None
        self._judged: EvaluatedModel | None = None
        # Until rank 0 says more:
        self.course = Tracker(job, start.dataset, self.learner, start.listener).course()

    def __enter__(self) -> MpirunRun:
        self._own = own = _private(self.job.workers)
        try:
            (own / JOB).write_text(self.job.toml(), encoding="utf-8")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(own / SOCKET))
                listener.listen(self.job.workers)
                self._process = subprocess.Popen(
                    command(self._mpirun, self.job.workers, own, self._folder, self._resume),
                    stdin=subprocess.DEVNULL,
                    env=_environment(own),
                    start_new_session=True,  # so that Ctrl-C comes to this process only
                )
                self._accept_ranks(listener, self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._outcome is not None and not self._outcome.failed:
            self._wait_for_mpirun()
        for pid, connection in self._ranks.values():
            if not connection.poll():  # it is there, and may be stopped
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            connection.close()
        if self._process is not None:
            for end in (self._process.terminate, self._process.kill):
                if self._wait_for_mpirun() is None:
                    end()
            self._wait_for_mpirun()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    @property
    def pids(self) -> dict[str, int]:
        return {name_of(rank): pid for rank, (pid, _) in sorted(self._ranks.items())}

    @property
    def workers(self) -> list[str]:
        return list(self.pids)

    def wait(self, seconds: float | None = None) -> RunResult | None:
        deadline = None if seconds is None else time.monotonic() + seconds
        head = self._ranks[0][1]
        while self._outcome is None:
            if not head.poll(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return None
            with deferred():  # half a message would leave the rest to be read as the next one
                self._receive(head)
        return self._outcome

    def interrupted(self) -> RunResult:
        with contextlib.suppress(OSError):
            send(self._ranks[0][1], MpiInterrupt())
        return self.wait(_EVALUATE_WITHIN) or self.outcome()

    def outcome(self) -> RunResult:
        if self._outcome is not None:
            return self._outcome
        return result_of(self.course, self._judged, self.course.over or "interrupted", True, [])

    def _accept_ranks(self, listener: socket.socket, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _COME_WITHIN
        listener.settimeout(0.1)
        while missing := [str(one) for one in range(self.job.workers) if one not in self._ranks]:
            if (code := process.poll()) is not None:
                how = self._how(code)
                raise StartFailed(f"mpirun ended ({how}) before its ranks had started; its output is above")
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"rank {', '.join(missing)} did not start in {_COME_WITHIN:g} s: is the machine that busy?"
                )
            with contextlib.suppress(TimeoutError):
                accepted, _ = listener.accept()
                if not is_ours(accepted):
                    accepted.close()
                    continue
                accepted.setblocking(True)
                connection = Connection(accepted.detach())
                match receive(connection)[0]:
                    case MpiHello(number, pid):
                        self._ranks[number] = pid, connection
                    case _:
                        connection.close()

    def _receive(self, head: Connection) -> None:
        line, judged = receive(head)
        self._judged = judged or self._judged
        match line:
            case MpiProgress(course, event):
                self.course = course
                if event is not None:
                    self._listener(event)
                for number, (_, connection) in list(self._ranks.items()):
                    if number and connection.poll():  # readable: it ended
                        connection.close()
                        del self._ranks[number]
            case MpiLeft(outcome):
                self._outcome = RunResult(judged=judged, **outcome)
            case MpiFailed(error):
                raise StartFailed(error)
            case None:
                self._outcome = self._lost()

    def _wait_for_mpirun(self) -> int | None:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WITHIN)
        return self._process.returncode

    def _lost(self) -> RunResult:
        """The result after the end of rank 0, which alone knew how far the run was."""
        code = self._wait_for_mpirun()
        who = "worker-0's process ended" if code is None or code >= 0 else f"mpirun ended ({self._how(code)})"
        why = f"{who}, and all others with it: shoal train --resume resumes from the last checkpoint"
        self.course = msgspec.structs.replace(self.course, over=why, failed=why, ended=True)
        self._listener(Stopped(seconds=self.course.seconds, why=why))
        return self.outcome()


def command(mpirun: Path, ranks: int, own: Path, folder: Path | None, resume: str) -> list[str]:
    """The mpirun command: any number of ranks on this machine, which continue when one dies."""
    options = ["--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none", "--host", f"localhost:{ranks}"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    parameters = {
        "pml": "ob1",
        "btl": "self,sm",  # one machine: shared memory only
        "btl_sm_backing_directory": str(own),
        "mpi_yield_when_idle": "1",
    }
    for name, value in parameters.items():
        options += ["--mca", name, value]
    program = [sys.executable, "-m", "shoal.strategies.averaging.mpirun", str(own), str(folder or ""), resume]
    return [str(mpirun), *options, "-n", str(ranks), *program]


def _private(ranks: int) -> Path:
    """A new folder: in shared memory if there is room, since the memory of the ranks lies there."""
    room = 0
    with contextlib.suppress(OSError):
        room = shutil.disk_usage(SHARED).free if os.access(SHARED, os.W_OK | os.X_OK) else 0
    return Path(tempfile.mkdtemp(prefix=f"shoal-mpi-{os.getpid()}-", dir=SHARED if room > ranks * _SEGMENT else None))


def _environment(own: Path) -> dict[str, str]:
    """Our shoal, our folder for mpirun's files, no variables of an mpirun around us."""
    foreign = ("OMPI_", "PMIX_", "PRTE_", "PMI_")
    base = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**base, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(own), OURS: "1"}


def main(own: Path, folder: Path | None, resume: str) -> int:
    me = rank()
    assert me is not None
    # _watch interrupts this process by SIGINT, which a shell may have set to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        caller: Connection = Client(str(own / SOCKET), "AF_UNIX")
        send(caller, MpiHello(me.number, os.getpid()))
    except OSError:  # it ended before this rank began
        shutil.rmtree(own, ignore_errors=True)
        return 1
    threading.Thread(target=_watch, args=(caller, os.getppid(), own), name="shoal-watch", daemon=True).start()
    try:
        world()
    except Invalid as error:
        if not me.number:
            send(caller, MpiFailed(str(error)))
        return 1
    take_part(lambda _: _lead(own, folder, resume, caller))
    return 0


def _lead(own: Path, folder: Path | None, resume: str, caller: Connection) -> None:
    from shoal.data.datasets import load
    from shoal.training.local_checkpoint import read

    training: RunHandle | None = None

    def listener(event: RunEvent) -> None:
        assert training is not None
        judged = training.outcome().judged if isinstance(event, Evaluated) else None
        send(caller, MpiProgress(training.course, event, _facts(judged)), judged)

    try:
        job = Job.load(own / JOB)
        start = RunStart(job, load(job.data, job.seed), listener, folder, read(Path(resume)) if resume else None)
        training = importlib.import_module(job.strategy.runs).open_run(start, lambda: None)
        with training:
            try:
                outcome = training.wait() or training.outcome()
            except (KeyboardInterrupt, SystemExit):
                outcome = training.interrupted()
        send(caller, MpiProgress(training.course))
        names = [name for name in RunResult.__dataclass_fields__ if name != "judged"]
        figures = msgspec.to_builtins({name: getattr(outcome, name) for name in names})
        send(caller, MpiLeft(figures, _facts(outcome.judged)), outcome.judged)
    except ShoalError as error:
        send(caller, MpiFailed(str(error)))


def _facts(judged: EvaluatedModel | None) -> EvaluatedAs | None:
    return None if judged is None else (judged.number, judged.loss, judged.metrics, judged.weights.shape)


def _watch(caller: Connection, parent: int, own: Path) -> None:
    """End with the caller and with mpirun; interrupt this process if the caller asks for it."""
    here = True
    while here and (os.getppid() == parent or caller.poll()):
        if wait([caller], _PARENT):
            here = isinstance(receive(caller)[0], MpiInterrupt)
            if here:
                os.kill(os.getpid(), signal.SIGINT)
    if not here:  # otherwise that process reads the folder, and removes it
        shutil.rmtree(own, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, sys.argv[3]))
