"""A run on ranks that shoal starts by mpirun: ``launch.how = "mpi"``.

    caller  --starts-->  mpirun  --starts-->  rank 0, rank 1, ...  (``main``)
       ^-----------events, the result-----------'

The caller keeps the folder, the log and the view, as for any run; it computes nothing. Rank 0
trains and reports; the others follow. Every rank connects to a Unix socket in a private folder,
where mpirun has its own files, too. A rank whose connection is closed, or whose mpirun is gone,
ends: so nothing is left, whichever process is killed, and the last one removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.errors import Invalid, ShoalError, StartFailed
from shoal.events import Evaluated, RunEvent, Stopped
from shoal.job import Job
from shoal.launch.crew import name_of
from shoal.launch.mpirun_rank import OURS, rank
from shoal.launch.process_main import ProcessMessage
from shoal.launch.torchrun import is_ours
from shoal.nodes.evaluator import Judgement
from shoal.strategies.averaging import Averaging
from shoal.strategies.averaging.mpi import needs_mpi, take_part, world
from shoal.strategies.averaging.worker import make_shards
from shoal.training.preflight import check
from shoal.training.run import RunHandle, RunStart
from shoal.training.tracker import RunResult, Tracker, result_of
from shoal.wire.messages import RunProgress

SOCKET, JOB, WEIGHTS = "socket", "job.toml", "weights.npy"  # in the private folder
SHARED = Path("/dev/shm")
_SEGMENT = 32 << 20  # bytes of shared memory that a rank takes, at most
_LOOK = 1_000  # milliseconds
_PARENT = 500  # milliseconds between checks of a rank's parent
_COME_WITHIN = 60.0  # seconds
_END_WITHIN = 5.0
_JUDGE_WITHIN = 60.0  # after an interruption
_SIZE = 8  # bytes that say how long a message is

JudgedAs = tuple[int, float, dict[str, float | None]]  # number, loss, metrics


class MpiHello(ProcessMessage, frozen=True, tag="here"):
    """Rank to caller: "this is who I am"."""

    rank: int
    pid: int


class MpiProgress(ProcessMessage, frozen=True, tag="told"):
    """Rank 0 to caller: "this happened, and this is how far the run is"."""

    course: RunProgress
    event: RunEvent | None = None
    judged: JudgedAs | None = None  # the model that would be kept; its weights lie in a file


class MpiLeft(ProcessMessage, frozen=True, tag="left"):
    """Rank 0 to caller: "the run is over, with this result"; the weights lie in a file."""

    outcome: dict[str, Any]
    judged: JudgedAs | None


class MpiFailed(ProcessMessage, frozen=True, tag="failed"):
    """Rank 0 to caller: "the run cannot be"."""

    error: str


class MpiInterrupt(ProcessMessage, frozen=True, tag="interrupt"):
    """Caller to rank 0: "end now, and evaluate what was learned"."""


MpiMessage = MpiHello | MpiProgress | MpiLeft | MpiFailed | MpiInterrupt


def send(connection: socket.socket, line: ProcessMessage) -> None:
    text = msgspec.msgpack.encode(line)
    connection.sendall(len(text).to_bytes(_SIZE, "little") + text)


def receive(connection: socket.socket) -> MpiMessage | None:
    """The next message; None if the other end is gone."""
    try:
        size = _read(connection, _SIZE)
        text = _read(connection, int.from_bytes(size, "little")) if size else b""
    except OSError:
        return None
    return msgspec.msgpack.decode(text, type=MpiMessage) if text else None


def _read(connection: socket.socket, size: int) -> bytes:
    found = connection.recv(size, socket.MSG_WAITALL)
    return found if len(found) == size else b""


class MpirunRun:
    """One run, as the caller has it."""

    def __init__(self, start: RunStart) -> None:
        self._mpirun = needs_mpi()
        job, self._listener, self._folder = start.job, start.listener, start.folder
        self.job, self.learner = job, check(job, start.dataset)
        self._kept = "" if start.resume is None else str(start.resume.path)
        tracker = Tracker(job, start.dataset, self.learner, start.listener)
        if isinstance(job.strategy, Averaging):
            make_shards(job, tracker.slots, job.workers)  # refuses wrong shares
        self._own: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ranks: dict[int, tuple[int, socket.socket]] = {}
        self._outcome: RunResult | None = None
        self._judged_as: JudgedAs | None = None
        self._course = tracker.course()  # until rank 0 says more

    def __enter__(self) -> MpirunRun:
        self._own = own = _private(self.job.workers)
        try:
            (own / JOB).write_text(self.job.toml(), encoding="utf-8")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(own / SOCKET))
                listener.listen(self.job.workers)
                self._process = subprocess.Popen(
                    command(self._mpirun, self.job.workers, own, self._folder, self._kept),
                    stdin=subprocess.DEVNULL,
                    env=_environment(own),
                    start_new_session=True,  # so that Ctrl-C comes to this process only
                )
                self._accept_ranks(listener)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._outcome is not None and not self._outcome.failed and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WITHIN)
        for pid, connection in self._ranks.values():
            if not select.select([connection], [], [], 0)[0]:  # it is there, and may be stopped
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            connection.close()
        if self._process is not None:
            _end(self._process)
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    @property
    def pids(self) -> dict[str, int]:
        return {name_of(rank): pid for rank, (pid, _) in sorted(self._ranks.items())}

    @property
    def workers(self) -> list[str]:
        return list(self.pids)

    @property
    def course(self) -> RunProgress:
        return self._course

    def wait(self, seconds: float | None = None) -> RunResult | None:
        deadline = None if seconds is None else time.monotonic() + seconds
        head = self._ranks[0][1]
        while self._outcome is None:
            left = _LOOK if deadline is None else min(_LOOK, max(0, round(1_000 * (deadline - time.monotonic()))))
            poll = select.poll()
            poll.register(head, select.POLLIN)
            if poll.poll(left):
                self._hear(head)
            elif deadline is not None and time.monotonic() >= deadline:
                return None
        return self._outcome

    def interrupted(self) -> RunResult:
        with contextlib.suppress(OSError):
            send(self._ranks[0][1], MpiInterrupt())
        return self.wait(_JUDGE_WITHIN) or self.outcome()

    def outcome(self) -> RunResult:
        if self._outcome is not None:
            return self._outcome
        so_far = self._course
        return result_of(so_far, self._judged(self._judged_as), so_far.over or "interrupted", True, [])

    # ------------------------------------------------------------ inside

    def _accept_ranks(self, listener: socket.socket) -> None:
        """Accept the connection of every rank."""
        assert self._process is not None
        deadline = time.monotonic() + _COME_WITHIN
        listener.settimeout(0.1)
        while len(self._ranks) < self.job.workers:
            if (code := self._process.poll()) is not None:
                raise StartFailed(f"mpirun ended ({_how(code)}) before its ranks were there; what it printed is above")
            if time.monotonic() > deadline:
                missing = [str(one) for one in range(self.job.workers) if one not in self._ranks]
                raise StartFailed(
                    f"no word from rank {', '.join(missing)} in {_COME_WITHIN:g} s: is the machine that busy?"
                )
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.setblocking(True)
                line = receive(connection) if is_ours(connection) else None
                if isinstance(line, MpiHello):
                    self._ranks[line.rank] = line.pid, connection
                else:
                    connection.close()

    def _hear(self, head: socket.socket) -> None:
        match receive(head):
            case MpiProgress(course, event, judged):
                self._course, self._judged_as = course, judged or self._judged_as
                if event is not None:
                    self._listener(event)
                self._drop_ended_ranks()
            case MpiLeft(outcome, judged):
                self._outcome = RunResult(judged=self._judged(judged), **outcome)
            case MpiFailed(error):
                raise StartFailed(error)
            case None:
                self._outcome = self._lost()

    def _judged(self, told: JudgedAs | None) -> Judgement | None:
        if told is None or self._own is None:
            return None
        number, loss, metrics = told
        with contextlib.suppress(OSError, ValueError):
            return Judgement(number, np.load(self._own / WEIGHTS), loss, metrics)
        return None

    def _drop_ended_ranks(self) -> None:
        for number, (_, connection) in list(self._ranks.items()):
            if number and select.select([connection], [], [], 0)[0]:  # readable: it ended
                connection.close()
                del self._ranks[number]

    def _lost(self) -> RunResult:
        """The result after the end of rank 0, which alone knew how far the run was."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WITHIN)
        code = self._process.returncode
        who = f"mpirun ended ({_how(code)})" if code is not None and code < 0 else "worker-0's process ended"
        why = f"{who}, and all others with it: shoal train --resume goes on from what was kept"
        self._course = msgspec.structs.replace(self._course, over=why, failed=why, ended=True)
        self._listener(Stopped(seconds=self._course.seconds, why=why))
        return self.outcome()


def command(mpirun: Path, ranks: int, own: Path, folder: Path | None, kept: str) -> list[str]:
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
    program = [sys.executable, "-m", "shoal.strategies.averaging.mpirun", str(own), str(folder or ""), kept]
    return [str(mpirun), *options, "-n", str(ranks), *program]


def _private(ranks: int) -> Path:
    """A new folder: in shared memory if there is room, since the memory of the ranks lies there."""
    room = 0
    with contextlib.suppress(OSError):
        room = shutil.disk_usage(SHARED).free if os.access(SHARED, os.W_OK | os.X_OK) else 0
    return Path(tempfile.mkdtemp(prefix=f"shoal-mpi-{os.getpid()}-", dir=SHARED if room > ranks * _SEGMENT else None))


def _environment(own: Path) -> dict[str, str]:
    """Our shoal, our folder for mpirun's files, no variables of an mpirun around us."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_"))
    }
    path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(own), OURS: "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        if number:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_WITHIN)
            return


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def main(own: Path, folder: Path | None, kept: str) -> int:
    me = rank()
    assert me is not None
    # _watch interrupts this process by SIGINT, which a shell may have set to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        caller.connect(str(own / SOCKET))
        send(caller, MpiHello(me.number, os.getpid()))
    except OSError:  # it ended before this rank began
        caller.close()
        shutil.rmtree(own, ignore_errors=True)
        return 1
    watch = threading.Thread(
        target=_watch, args=(caller, os.getppid(), own, me.number), name="shoal-watch", daemon=True
    )
    watch.start()
    try:
        world()
    except Invalid as error:
        if not me.number:
            send(caller, MpiFailed(str(error)))
        return 1
    take_part(lambda _: _lead(own, folder, kept, caller))
    return 0


def _lead(own: Path, folder: Path | None, kept: str, caller: socket.socket) -> None:
    from shoal.data.datasets import load
    from shoal.strategies.averaging.run import AveragingRun
    from shoal.training.local_checkpoint import read

    training: RunHandle | None = None

    def listener(event: RunEvent) -> None:
        assert training is not None
        judged = _left(training.outcome(), own) if isinstance(event, Evaluated) else None
        send(caller, MpiProgress(training.course, event, judged))

    try:
        job = Job.load(own / JOB)
        resume = read(Path(kept)) if kept else None
        training = AveragingRun(RunStart(job, load(job.data, job.seed), listener, folder, resume))
        outcome: RunResult | None
        with training:
            try:
                outcome = training.wait()
            except (KeyboardInterrupt, SystemExit):
                outcome = training.interrupted()
        send(caller, MpiProgress(training.course))
        _leave(outcome or training.outcome(), own, caller)
    except ShoalError as error:
        send(caller, MpiFailed(str(error)))


def _leave(outcome: RunResult, own: Path, caller: socket.socket) -> None:
    judged = _left(outcome, own)
    names = [name for name in RunResult.__dataclass_fields__ if name != "judged"]
    facts = msgspec.to_builtins({name: getattr(outcome, name) for name in names})
    send(caller, MpiLeft(facts, judged))


def _left(outcome: RunResult, own: Path) -> JudgedAs | None:
    """Write the model that is kept where the calling process finds it, however this one ends."""
    judged = outcome.judged
    if judged is None:
        return None
    aside = own / f"new-{WEIGHTS}"
    np.save(aside, judged.weights)
    os.replace(aside, own / WEIGHTS)
    return judged.number, judged.loss, judged.metrics


def _watch(caller: socket.socket, parent: int, own: Path, rank: int) -> None:
    """End with the caller and with mpirun; interrupt this process if the caller asks for it."""
    poll = select.poll()
    poll.register(caller, select.POLLIN)
    here = True
    while here and (os.getppid() == parent or poll.poll(0)):
        if poll.poll(_PARENT):
            here = isinstance(receive(caller), MpiInterrupt)
            if here:
                os.kill(os.getpid(), signal.SIGINT)
    if not here:  # otherwise that process reads the folder, and removes it
        shutil.rmtree(own, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, sys.argv[3]))
