"""What mpirun starts for ``launch.how = "mpi"``: a rank that belongs to the process that was called.

Rank 0 trains, and tells that process what happens; the others follow. A rank ends when that process does, or mpirun.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np

from shoal.errors import ShoalError
from shoal.events import RunEvent
from shoal.launch import mpi
from shoal.launch.mpirun import DOOR, JOB, WEIGHTS, Failed, Here, Interrupt, Left, Told, heard, send
from shoal.launch.training import Outcome
from shoal.launch.underway import Underway

_LOOK = 500  # milliseconds between two looks at who our parent is


def main(own: Path, folder: Path | None, kept: str) -> int:
    me = mpi.rank()
    assert me is not None
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.connect(str(own / DOOR))
    send(caller, Here(me.number, os.getpid()))
    watch = threading.Thread(
        target=_watch, args=(caller, os.getppid(), own, me.number), name="shoal-watch", daemon=True
    )
    watch.start()
    mpi.take_part(lambda _: _lead(own, folder, kept, caller))
    return 0


def _lead(own: Path, folder: Path | None, kept: str, caller: socket.socket) -> None:
    from shoal.data.datasets import load
    from shoal.job import Job
    from shoal.launch.kept_slab import read
    from shoal.launch.underway import underway

    training: Underway | None = None

    def listener(event: RunEvent) -> None:
        assert training is not None
        send(caller, Told(training.course, event))

    try:
        job = Job.load(own / JOB)
        training = underway(job, load(job.data, job.seed), listener, folder, read(Path(kept)) if kept else None)
        outcome: Outcome | None
        with training:
            try:
                outcome = training.wait()
            except (KeyboardInterrupt, SystemExit):
                outcome = training.interrupted()
        send(caller, Told(training.course))
        _leave(outcome or training.outcome(), own, caller)
    except ShoalError as error:
        send(caller, Failed(str(error)))


def _leave(outcome: Outcome, own: Path, caller: socket.socket) -> None:
    judged = outcome.judged
    if judged is not None:
        np.save(own / WEIGHTS, judged.weights)
    names = [name for name in Outcome.__dataclass_fields__ if name != "judged"]
    facts = msgspec.to_builtins({name: getattr(outcome, name) for name in names})
    send(caller, Left(facts, None if judged is None else (judged.number, judged.loss, judged.metrics)))


def _watch(caller: socket.socket, parent: int, own: Path, rank: int) -> None:
    """End with the process that was called, and with mpirun; hear what the first has to say."""
    poll = select.poll()
    poll.register(caller, select.POLLIN)
    while os.getppid() == parent:
        if poll.poll(_LOOK):
            if not isinstance(heard(caller), Interrupt):
                break
            os.kill(os.getpid(), signal.SIGINT)
    with contextlib.suppress(OSError):
        shutil.rmtree(own, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, sys.argv[3]))
