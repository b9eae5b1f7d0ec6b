"""What mpirun starts for ``launch.how = "mpi"``: a rank that belongs to the process that was called.

Rank 0 trains, and tells that process what happens; the others follow. A rank ends when that process does, or mpirun.
"""

from __future__ import annotations

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

from shoal.errors import Invalid, ShoalError
from shoal.events import Evaluated, RunEvent
from shoal.strategies.averaging import mpi_ranks
from shoal.strategies.averaging.mpirun import (
    DOOR,
    JOB,
    WEIGHTS,
    JudgedAs,
    MpiFailed,
    MpiHello,
    MpiInterrupt,
    MpiLeft,
    MpiProgress,
    heard,
    send,
)
from shoal.training.result import RunResult
from shoal.training.underway import RunHandle

_LOOK = 500  # milliseconds between two looks at who our parent is


def main(own: Path, folder: Path | None, kept: str) -> int:
    me = mpi_ranks.rank()
    assert me is not None
    # It is how we interrupt ourselves (_watch); a script that has its background jobs ignore it handed that on to us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        caller.connect(str(own / DOOR))
        send(caller, MpiHello(me.number, os.getpid()))
    except OSError:  # it has ended before we began
        caller.close()
        shutil.rmtree(own, ignore_errors=True)
        return 1
    watch = threading.Thread(
        target=_watch, args=(caller, os.getppid(), own, me.number), name="shoal-watch", daemon=True
    )
    watch.start()
    try:
        mpi_ranks.world()
    except Invalid as error:
        if not me.number:
            send(caller, MpiFailed(str(error)))
        return 1
    mpi_ranks.take_part(lambda _: _lead(own, folder, kept, caller))
    return 0


def _lead(own: Path, folder: Path | None, kept: str, caller: socket.socket) -> None:
    from shoal.data.datasets import load
    from shoal.job import Job
    from shoal.strategies.averaging.run import AveragingRun
    from shoal.training.local_checkpoint import read

    training: RunHandle | None = None

    def listener(event: RunEvent) -> None:
        assert training is not None
        judged = _left(training.outcome(), own) if isinstance(event, Evaluated) else None
        send(caller, MpiProgress(training.course, event, judged))

    try:
        job = Job.load(own / JOB)
        training = AveragingRun(job, load(job.data, job.seed), listener, folder, read(Path(kept)) if kept else None)
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
    """The model that is kept, where the process that was called finds it, however this one ends."""
    judged = outcome.judged
    if judged is None:
        return None
    aside = own / f"new-{WEIGHTS}"
    np.save(aside, judged.weights)
    os.replace(aside, own / WEIGHTS)
    return judged.number, judged.loss, judged.metrics


def _watch(caller: socket.socket, parent: int, own: Path, rank: int) -> None:
    """End with the process that was called, and with mpirun; hear what the first has to say."""
    poll = select.poll()
    poll.register(caller, select.POLLIN)
    here = True
    while here and (os.getppid() == parent or poll.poll(0)):
        if poll.poll(_LOOK):
            here = isinstance(heard(caller), MpiInterrupt)
            if here:
                os.kill(os.getpid(), signal.SIGINT)
    if not here:  # otherwise the folder is for it to remove: what was learned lies there
        shutil.rmtree(own, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, sys.argv[3]))
