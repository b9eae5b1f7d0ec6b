"""Ranks of mpirun that add up vectors, and go on without those that die (ULFM: Bland et al., 2013).

A rank that dies breaks a sum for some and not for others. Whoever finds it broken revokes the communicator, so that all find
it broken; the living shrink it, and tell each other how many sums they have finished. Nobody finishes a sum before all
have begun it, so these differ by one at most: who has the newer one gives it to who has not. Where nobody has it, all
do it again, without the dead. So a death is in a sum or is not, the same for all, bit by bit.

Nobody leaves before all have finished the last sum, or who has not would have nobody to ask.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import RankLost
from shoal.launch.process_main import state_of
from shoal.models.linear import Floats
from shoal.strategies.averaging.collective import name_of

if TYPE_CHECKING:
    from mpi4py import MPI

_YIELDS = 50  # looks without sleeping: most sums are over by then
_NAPS = (0.00002, 0.002)  # seconds between two looks after that, growing: nobody keeps a core busy by waiting
_SAY = 10.0  # seconds until it is said for whom a rank waits
_STOPPED = 60.0  # seconds until a rank that somebody has stopped is ended
_PART, _SUM = 1, 2  # tags


class MpiCollective:
    """All that mpirun has started, as far as they live."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        told: Callable[[str], None] = lambda what: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """``told`` hears for whom this rank waits; ``is_over`` says that rank 0 has left without the others."""
        from mpi4py import MPI

        self._mpi = MPI
        self._comm: Any = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = int(comm.rank), int(comm.size)
        self.sent = self.received = 0  # bytes
        self._members = list(range(self.size))  # of the communicator as it is now
        self._pids: list[int] = self._comm.allgather(os.getpid())
        self._finished, self._newest = 0, np.empty(0, np.float32)
        self._open: list[Any] = []  # requests of the sum under way
        self._told, self._is_over = told, is_over
        self.parted = False

    @property
    def living(self) -> list[int]:
        """Ranks that are not known to be dead."""
        return list(self._members)

    @property
    def pids(self) -> list[int]:
        """Of all ranks, as they began."""
        return list(self._pids)

    def total(self, vector: Floats) -> Floats:
        """The sum over the living ranks."""
        number, found = self._finished, np.empty_like(vector)
        while self._finished == number:
            try:
                self._sum(vector, found)
            except self._mpi.Exception as error:
                self._mend(error, len(vector))
            else:
                self._finished, self._newest = number + 1, found
        moved = 2 * vector.nbytes * (len(self._members) - 1) // len(self._members)
        self.sent += moved
        self.received += moved
        return self._newest

    def close(self) -> None:
        """Nothing: who ends well calls ``part``, who does not must not wait for the others."""

    def part(self) -> None:
        """Until all have finished what was summed last."""
        while not self.parted and not self._agree(1):
            self._shrink(len(self._newest))
        self.parted = True

    def _sum(self, vector: Floats, out: Floats) -> None:
        """Each adds up one piece of it, in the order of ranks, and hands it to all.

        As an Allreduce would, but that waits with a busy core, does not say for whom, and never gives up on one that is stopped.
        """
        comm, here, places = self._comm, self._comm.rank, range(len(self._members))
        cuts = [len(vector) * place // len(places) for place in [*places, len(places)]]
        piece = [slice(cuts[place], cuts[place + 1]) for place in places]
        others = [(place, rank) for place, rank in enumerate(self._members) if place != here]
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

    # ------------------------------------------------------------ when somebody dies

    def _mend(self, error: MPI.Exception, length: int) -> None:
        """Go on with those who live; who lacks the newest sum has it afterwards."""
        mpi = self._mpi
        if error.Get_error_class() not in (mpi.ERR_PROC_FAILED, mpi.ERR_REVOKED, mpi.ERR_PROC_FAILED_PENDING):
            raise self._given_up(error) from None
        if not self._comm.Is_revoked():
            self._comm.Revoke()
        self._drop()
        self._agree(0)
        self._shrink(length)

    def _drop(self) -> None:
        """What was under way ends with an error now; left as it is, MPI would wait for it in the end."""
        for request in self._open:
            with contextlib.suppress(self._mpi.Exception):
                self._wait([(-1, request)])
        self._open = []

    def _agree(self, over: int) -> int:
        """1 if all say so. Whoever is in the middle of a sum says 0, so nobody shrinks while another one leaves."""
        while True:
            flag = np.array([over], np.int32)
            try:
                self._wait([(-1, self._comm.Iagree(flag))])
                return int(flag[0])
            except self._mpi.Exception as error:
                # Told to all alike: somebody has died that nobody spoke of yet. Who is known to be dead is no error next time.
                if error.Get_error_class() != self._mpi.ERR_PROC_FAILED:
                    raise self._given_up(error) from None
                self._comm.Ack_failed()
                over = min(over, int(flag[0]))

    def _shrink(self, length: int) -> None:
        """Until those who live have all done it."""
        while True:
            smaller = self._comm.Shrink()
            smaller.Set_errhandler(self._mpi.ERRORS_RETURN)
            self._comm.Free()
            self._comm = smaller
            try:
                self._members = self._gather(self.rank)
                if self._members[0] != 0:
                    raise RankLost(name_of(0), "its process ended")  # it alone knows how far all are
                self._level(length)
                return
            except self._mpi.Exception:
                if not self._comm.Is_revoked():
                    self._comm.Revoke()

    def _given_up(self, error: MPI.Exception) -> RankLost:
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

    # ------------------------------------------------------------ waiting

    def _wait(self, requests: list[tuple[int, Any]]) -> None:
        """Until all of these, each with a rank, are done."""
        for _ in range(_YIELDS):
            requests = [(one, request) for one, request in requests if not request.Test()]
            if not requests:
                return
            os.sched_yield()
        nap, most = _NAPS
        began, say = time.monotonic(), _SAY
        while left := [(one, request) for one, request in requests if not request.Test()]:
            nap = min(most, 1.1 * nap) if len(left) == len(requests) else _NAPS[0]
            requests = left
            time.sleep(nap)  # MPI's own waits spin, and never end if a rank is gone
            if self._is_over():
                raise RankLost(name_of(0), "it has ended the run")
            if (waited := time.monotonic() - began) > say:
                say *= 2
                self._look([one for one, _ in requests if one >= 0], waited)

    def _look(self, missing: list[int], waited: float) -> None:
        """Say for whom this rank waits. One that somebody has stopped is ended in the end: the others go on without it."""
        for one in missing:
            pid = self._pids[one]
            what = f"rank {one} (process {pid}) has been waited for since {waited:.0f} s"
            if state_of(pid) not in ("T", "t"):
                self._told(f"{what}: it computes; if it should not take so long, end it (kill -KILL {pid})")
            elif waited < _STOPPED:
                self._told(f"{what}: it is stopped; let it go on (kill -CONT {pid}), or end it (kill -KILL {pid})")
            else:
                self._told(f"{what}: it is stopped, so it is ended, and the others go on")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
