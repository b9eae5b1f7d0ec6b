"""Ranks of mpirun: how they sum vectors, continue without those that die, and take orders.

    mpirun -n 5 python -m shoal train job.toml --strategy averaging

Rank 0 runs the command as usual; the others take its orders, which they poll for, since MPI's own
wait would keep a core busy. MPI is imported only in processes that mpirun started: alone it leaves
files behind.

Deaths (ULFM: Bland et al., 2013): a rank whose sum breaks revokes the communicator, so that it
breaks for all; the living shrink it. No rank finishes a sum before all have begun it, so the
numbers of finished sums differ by at most one: a rank that has the newer sum gives it to those that
have not; if none has it, all repeat it. No rank leaves before all have finished the last sum.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.errors import Invalid, RankLost
from shoal.events import counted
from shoal.launch.mpirun_rank import OURS, REFUSED, MpirunRank, rank, refuse
from shoal.launch.process_main import ProcessMessage, flush, state_of
from shoal.launch.serverless_pool import PoolWorkerSpec, name_of
from shoal.models.linear import Floats

if TYPE_CHECKING:
    from mpi4py import MPI

    from shoal.job import Job

_YIELDS = 50  # tests without a sleep: most sums are done by then
_NAPS = (0.00002, 0.002)  # seconds of sleep between two tests after that, growing
_SAY = 10.0  # seconds until a warning says which rank is awaited
_STOPPED = 60.0  # seconds until a rank that is stopped is killed
_PART, _SUM = 1, 2  # tags of pieces and sums
_LEAVE_WITHIN = 5.0  # seconds
_NAP = 0.005  # seconds between checks for orders


class MpiCollective:
    def __init__(
        self,
        comm: MPI.Intracomm,
        warn: Callable[[str], None] = lambda what: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_over``: rank 0 has left without the others."""
        from mpi4py import MPI

        self._mpi = MPI
        self._comm: Any = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = int(comm.rank), int(comm.size)
        self.sent = self.received = 0  # bytes
        self.living = list(range(self.size))  # the communicator as it is now
        self.pids: list[int] = self._comm.allgather(os.getpid())  # of all ranks at the start
        self._finished, self._newest = 0, np.empty(0, np.float32)
        self._open: list[Any] = []  # requests of the current sum
        self._warn, self._is_over = warn, is_over
        self.finished = False

    def total(self, vector: Floats) -> Floats:
        number, found = self._finished, np.empty_like(vector)
        while self._finished == number:
            try:
                self._sum(vector, found)
            except self._mpi.Exception as error:
                self._mend(error, len(vector))
            else:
                self._finished, self._newest = number + 1, found
        moved = 2 * vector.nbytes * (len(self.living) - 1) // len(self.living)
        self.sent += moved
        self.received += moved
        return self._newest

    def close(self) -> None:
        """Nothing: a rank that ends well calls ``finish``; any other must not wait for the rest."""

    def finish(self) -> None:
        """Wait until all have finished the last sum."""
        while not self.finished and not self._agree(1):
            self._shrink(len(self._newest))
        self.finished = True

    def _sum(self, vector: Floats, out: Floats) -> None:
        """Each rank sums one piece, in the order of ranks, and sends it to all.

        Allreduce would keep a core busy, not say for which rank it waits, and never give up on it.
        """
        comm, here, places = self._comm, self._comm.rank, range(len(self.living))
        cuts = [len(vector) * place // len(places) for place in [*places, len(places)]]
        piece = [slice(cuts[place], cuts[place + 1]) for place in places]
        others = [(place, rank) for place, rank in enumerate(self.living) if place != here]
        given = np.empty((len(places), cuts[here + 1] - cuts[here]), np.float32)
        given[here] = vector[piece[here]]
        sums = [(rank, comm.Irecv(out[piece[place]], place, _SUM)) for place, rank in others]
        parts = [(rank, comm.Irecv(given[place], place, _PART)) for place, rank in others]
        going = [(rank, comm.Isend(vector[piece[place]], place, _PART)) for place, rank in others]
        self._open = [request for _, request in [*sums, *parts, *going]]
        self._wait(parts)
        mine = out[piece[here]]
        mine[:] = given[0]
        for part in given[1:]:
            mine += part
        going += [(rank, comm.Isend(mine, place, _SUM)) for place, rank in others]
        self._open = [request for _, request in [*sums, *going]]
        self._wait(sums)
        self._wait(going)

    # ------------------------------------------------------------ when a rank dies

    def _mend(self, error: MPI.Exception, length: int) -> None:
        mpi = self._mpi
        if error.Get_error_class() not in (mpi.ERR_PROC_FAILED, mpi.ERR_REVOKED, mpi.ERR_PROC_FAILED_PENDING):
            raise self._lost(error) from None
        if not self._comm.Is_revoked():
            self._comm.Revoke()
        self._drop()
        self._agree(0)
        self._shrink(length)

    def _drop(self) -> None:
        """Let the open requests fail; otherwise MPI would wait for them when it ends."""
        for request in self._open:
            with contextlib.suppress(self._mpi.Exception):
                self._wait([(-1, request)])
        self._open = []

    def _agree(self, over: int) -> int:
        """1 if all say 1. A rank inside a sum says 0, so none shrinks while another leaves."""
        while True:
            flag = np.array([over], np.int32)
            try:
                self._wait([(-1, self._comm.Iagree(flag))])
                return int(flag[0])
            except self._mpi.Exception as error:
                # All ranks get this error: a death that is not acknowledged yet.
                if error.Get_error_class() != self._mpi.ERR_PROC_FAILED:
                    raise self._lost(error) from None
                self._comm.Ack_failed()
                over = min(over, int(flag[0]))

    def _shrink(self, length: int) -> None:
        while True:
            smaller = self._comm.Shrink()
            smaller.Set_errhandler(self._mpi.ERRORS_RETURN)
            self._comm.Free()
            self._comm = smaller
            try:
                self.living = self._gather(self.rank)
                if self.living[0] != 0:
                    raise RankLost(name_of(0), "its process ended")  # only it knows the progress
                self._level(length)
                return
            except self._mpi.Exception:
                if not self._comm.Is_revoked():
                    self._comm.Revoke()

    def _lost(self, error: MPI.Exception) -> RankLost:
        return RankLost("a rank", f"MPI says {error.Get_error_string()}")

    def _level(self, length: int) -> None:
        finished = self._gather(self._finished)
        newest = max(finished)
        if min(finished) == newest:
            return
        found = self._newest if self._finished == newest else np.empty(length, np.float32)
        self._comm.Bcast(found, root=finished.index(newest))
        self._finished, self._newest = newest, found

    def _gather(self, number: int) -> list[int]:
        found = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(np.array([number], np.int64), found)
        return [int(one) for one in found]

    def _wait(self, requests: list[tuple[int, Any]]) -> None:
        looks, began, say, (nap, longest) = 0, time.monotonic(), _SAY, _NAPS
        while left := [(one, request) for one, request in requests if not request.Test()]:
            looks += 1
            nap = min(longest, 1.1 * nap) if len(left) == len(requests) and looks > _YIELDS else _NAPS[0]
            requests = left
            if looks <= _YIELDS:
                os.sched_yield()
                continue
            time.sleep(nap)  # MPI's own wait spins, and never ends if a rank is gone
            if self._is_over():
                raise RankLost(name_of(0), "it has ended the run")
            if (waited := time.monotonic() - began) > say:
                say *= 2
                self._check([one for one, _ in requests if one >= 0], waited)

    def _check(self, missing: list[int], waited: float) -> None:
        """Warn of the ranks that this one waits for, and kill one that is stopped for too long."""
        for one in missing:
            pid = self.pids[one]
            what = f"rank {one} (process {pid}) has kept the others waiting for {waited:.0f} s"
            if state_of(pid) not in ("T", "t"):
                self._warn(f"{what}: it is still computing; to go on without it, end it (kill -KILL {pid})")
            elif waited < _STOPPED:
                self._warn(f"{what}: it is stopped; resume it (kill -CONT {pid}), or end it (kill -KILL {pid})")
            else:
                self._warn(f"{what}: it is stopped, so it is killed, and the others continue")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class MpiTask(ProcessMessage, frozen=True, tag="work"):
    """Rank 0 to the others: "take part in this run"."""

    work: dict[str, Any]  # plain data


class MpiDone(ProcessMessage, frozen=True, tag="over"):
    """Rank 0 to the others: "there is nothing more to do"."""


def needs_mpi() -> Path:
    """The mpirun of this environment; Invalid if it or mpi4py is not there."""
    here = Path(sysconfig.get_path("scripts")) / "mpirun"
    found = str(here) if here.exists() else shutil.which("mpirun")
    missing = [name for name, there in (("mpi4py", importlib.util.find_spec("mpi4py")), ("mpirun", found)) if not there]
    if missing:
        raise Invalid(f"MPI needs {' and '.join(missing)}, not installed here: pip install 'shoal[mpi]'")
    assert found is not None
    return Path(found)


def check_alone() -> None:
    """Refuse a script under mpirun: only the command knows how to use the other ranks."""
    me = rank()
    if me is not None and not world.cache_info().currsize:
        raise Invalid(
            f"mpirun started this {me.size} times, and each would train a run of its own: let the command do it "
            f"(mpirun -n {me.size} python -m shoal train job.toml), or leave out mpirun and set launch.how to 'mpi'"
        )


def check_mpi(job: Job) -> None:
    if not job.strategy.may_use_mpi:
        raise Invalid(
            f"strategy {job.strategy.name!r} does not run over MPI: leave out mpirun (or --on mpi), or choose "
            f"one whose ranks add up (--strategy averaging or allreduce)"
        )
    over = getattr(job.strategy, "over", None)
    if over not in (None, "mpi"):
        raise Invalid(f"strategy.over={over!r} does not run over MPI: leave out mpirun (or --on mpi), or that setting")


class MpiHead:
    cluster = None  # ranks have no servers

    def __init__(self, me: MpirunRank) -> None:
        self.rank = me
        self.words = (
            f"mpirun: {counted(me.size, 'rank')}, so workers={me.size}, whatever the job says (after Ctrl-C mpirun "
            f"shows nothing more, but the run is kept: --resume)"
        )

    def staffed(self, job: Job, fresh: bool = False) -> Job:
        check_mpi(job)
        launch = msgspec.structs.replace(job.launch, how="mpi")
        return msgspec.structs.replace(job, workers=self.rank.size, launch=launch)


class MpiWorld:
    """All ranks, before and after a run: rank 0 gives orders, the others take them."""

    def __init__(self) -> None:
        try:
            import mpi4py

            mpi4py.rc.thread_level = "serialized"
            mpi4py.rc.finalize = False  # it waits for all ranks: see ``leave``
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise Invalid(
                f"mpi4py is installed, but cannot load MPI ({error}): pip install --force-reinstall 'shoal[mpi]'"
            ) from None
        self._mpi, self.comm = MPI, MPI.COMM_WORLD
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = int(self.comm.rank), int(self.comm.size)
        self._group: MpiCollective | None = None  # of the last run
        self.over = False  # rank 0 ordered it during a run
        self._sends: list[MPI.Request] = []  # with their buffers
        me = rank()
        if me is not None and me != MpirunRank(self.rank, self.size):
            MPI.Finalize()
            raise Invalid(
                f"variables of an mpirun say that this is rank {me.number} of {me.size}, and MPI that it is rank "
                f"{self.rank} of {self.size}: they are left from another one (unset OMPI_COMM_WORLD_SIZE "
                f"PMI_SIZE), or mpi4py is of another MPI"
            )

    def order(self, order: MpiTask | MpiDone) -> None:
        for other in range(1, self.size):
            with contextlib.suppress(self._mpi.Exception):  # it is dead
                self._sends.append(self.comm.isend(order, other))

    def ordered(self) -> Any:
        """The next order of rank 0; None if there is none yet."""
        try:
            message = self.comm.improbe(0)
            return None if message is None else message.recv()
        except self._mpi.Exception:
            raise RankLost(name_of(0), "its process ended") from None

    def group(self, warn: Callable[[str], None] = lambda what: None) -> MpiCollective:
        self._group = MpiCollective(self.comm, warn, self._is_over)
        return self._group

    def _is_over(self) -> bool:
        if self.rank:
            self.over = self.over or isinstance(self.ordered(), MpiDone)
        return self.over

    def leave(self, code: int) -> None:
        """Finalize with all ranks, so that mpirun sees a good end.

        If a rank has died or was interrupted in a sum, MPI may wait for ever: then just exit.
        """
        if self._group is not None and len(self._group.living) < self.size:
            os._exit(code)
        guard = threading.Timer(_LEAVE_WITHIN, os._exit, (code,))
        guard.daemon = True
        guard.start()
        self._mpi.Finalize()
        guard.cancel()


@cache
def world() -> MpiWorld:
    return MpiWorld()


def take_part(call: Callable[[MpiHead], object]) -> object:
    """Rank 0 runs the command; the other ranks follow its orders."""
    me = rank()
    assert me is not None
    try:
        needs_mpi()
        here, code = world(), 1
    except Invalid as error:
        if not me.number or "left from another one" in str(error):
            refuse(str(error))
        sys.exit(REFUSED)
    if me.number:
        follow()
        sys.exit(0)
    try:
        found = call(MpiHead(me))
        code = 0
        return found
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        here.order(MpiDone())
        flush()
        here.leave(code)


def follow() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Rank 0 gets the same signal, and needs this rank to end the run.
        signal.signal(number, lambda *_: None)
    here = world()
    try:
        while not here.over and not isinstance(order := here.ordered(), MpiDone):
            if isinstance(order, MpiTask):
                _work(here, msgspec.convert(order.work, PoolWorkerSpec))
            else:
                time.sleep(_NAP)
    except RankLost as error:  # rank 0 is gone: all end
        if here.rank == 1 and not os.environ.get(OURS):
            why = f"{error.who} is gone ({error.why}), and all others end with it"
            print(f"Error: {why}: shoal train --resume resumes from the last checkpoint", file=sys.stderr, flush=True)
        os._exit(1)
    here.leave(0)


def _work(here: MpiWorld, spec: PoolWorkerSpec) -> None:
    from shoal.strategies.averaging.worker import run_rank as take_part_in

    group = here.group(_warn_of_rank_0 if here.rank == 1 else lambda what: None)
    try:
        take_part_in(spec, group)
        group.finish()
    except RankLost:
        if not here.over:
            raise
    except BaseException:
        traceback.print_exc()
        flush()
        # By a signal: where ranks may die, mpirun does not notice an exit, and all would wait.
        os.kill(os.getpid(), signal.SIGKILL)


def _warn_of_rank_0(what: str) -> None:
    """Rank 0 warns of all other ranks itself; when it is stopped it cannot."""
    if what.startswith("rank 0 ") and "it is stopped" in what:
        print(f"warning: {what}", file=sys.stderr, flush=True)
