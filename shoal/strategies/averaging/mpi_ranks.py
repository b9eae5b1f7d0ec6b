"""Who am I, under mpirun: one of several ranks that add things up.

    mpirun -n 5 python -m shoal train job.toml --strategy averaging

Rank 0 runs the command as ever: terminal, run folder, score. The others parse nothing and print nothing: they wait for work, do
it with rank 0, and end when rank 0 says so. What rank 0 tells them goes from one to one, so that a death is seen as what
it is, and they look for it now and then while they wait: MPI's own waiting would keep a core busy.

Nothing here imports MPI before mpirun is known to have started this process: a process alone would leave files behind. Nor numpy:
every command asks here who it is.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import Invalid, RankLost
from shoal.events import counted
from shoal.launch.exit_status import REFUSED, refuse
from shoal.launch.mpirun_rank import OURS as OURS
from shoal.launch.mpirun_rank import MpirunRank as MpirunRank
from shoal.launch.mpirun_rank import rank as rank
from shoal.launch.process_main import ProcessMessage, flush
from shoal.strategies.averaging.collective import Collective, name_of

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from shoal.job import Job
    from shoal.strategies.averaging.mpi import MpiCollective

_ORDERS, _LENGTH = 1, 2  # tags
_LEAVE_WITHIN = 5.0  # seconds
_NAP = 0.005  # seconds between two looks for orders


class MpiTask(ProcessMessage, frozen=True, tag="work"):
    """Rank 0 to the others: "take part in this run"."""

    work: dict[str, Any]  # plain data


class MpiDone(ProcessMessage, frozen=True, tag="over"):
    """Rank 0 to the others: "there is nothing more to do"."""


def needs_mpi() -> Path:
    """The mpirun of this environment; Invalid if it, or mpi4py, is not there."""
    here = Path(sysconfig.get_path("scripts")) / "mpirun"
    found = str(here) if here.exists() else shutil.which("mpirun")
    missing = [name for name, there in (("mpi4py", importlib.util.find_spec("mpi4py")), ("mpirun", found)) if not there]
    if missing:
        raise Invalid(f"MPI needs {' and '.join(missing)}, not installed here: pip install 'shoal[mpi]'")
    assert found is not None
    return Path(found)


def check_alone() -> None:
    """No other rank runs the very same lines: only the command can tell them what to do."""
    me = rank()
    if me is not None and _world is None:
        raise Invalid(
            f"mpirun started this {me.size} times, and each would train a run of its own: let the command do it "
            f"(mpirun -n {me.size} python -m shoal train job.toml), or leave mpirun away and set launch.how to 'mpi'"
        )


def check_mpi(job: Job) -> None:
    """Whether ranks of mpirun can do it."""
    if not job.strategy.may_use_mpi:
        raise Invalid(
            f"strategy {job.strategy.name!r} does not run over MPI: leave mpirun (or --on mpi) away, or choose one whose ranks "
            f"add up (--strategy averaging or allreduce)"
        )
    over = getattr(job.strategy, "over", None)
    if over not in (None, "mpi"):
        raise Invalid(f"strategy.over={over!r} does not run over MPI: leave mpirun (or --on mpi) away, or that setting")


class MpiHead:
    """Rank 0, which runs the command."""

    cluster = None  # ranks have no servers

    def __init__(self, me: MpirunRank) -> None:
        self.rank = me
        self.words = (
            f"mpirun: {counted(me.size, 'rank')}, so workers={me.size}, whatever the job says (after Ctrl-C mpirun shows nothing "
            f"more, but the run is kept: --resume)"
        )

    def staffed(self, job: Job, anew: bool = False) -> Job:
        """The job with as many workers as there are ranks."""
        check_mpi(job)
        launch = msgspec.structs.replace(job.launch, how="mpi")
        return msgspec.structs.replace(job, workers=self.rank.size, launch=launch)


class MpiWorld:
    """All ranks, before and after a run: rank 0 gives orders, the others take them."""

    def __init__(self) -> None:
        try:
            import mpi4py

            mpi4py.rc.thread_level = "serialized"
            mpi4py.rc.finalize = False  # it waits for all: only who ends well may call it
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise Invalid(
                f"mpi4py is installed, but cannot load MPI ({error}): pip install --force-reinstall 'shoal[mpi]'"
            ) from None
        self._mpi, self.comm = MPI, MPI.COMM_WORLD
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = int(self.comm.rank), int(self.comm.size)
        self._living: Callable[[], list[int]] = lambda: list(range(self.size))
        self.over = False  # rank 0 has said so in the middle of a run
        self._next: tuple[np.ndarray[Any, Any], MPI.Request] | None = None  # the orders that are listened for
        self._given: list[Any] = []  # and those under way
        me = rank()
        if me is not None and me != MpirunRank(self.rank, self.size):
            MPI.Finalize()
            raise Invalid(
                f"variables of an mpirun say that this is rank {me.number} of {me.size}, and MPI that it is rank {self.rank} of "
                f"{self.size}: they are left from another one (unset OMPI_COMM_WORLD_SIZE PMI_SIZE), or mpi4py is of another MPI"
            )

    def order(self, line: ProcessMessage) -> None:
        """To all others that live."""
        import numpy as np

        text = np.frombuffer(msgspec.json.encode(line), np.uint8)
        length = np.array([len(text)], np.int64)
        for other in range(1, self.size):
            with contextlib.suppress(self._mpi.Exception):  # it is dead
                one = self.comm.Isend(length, dest=other, tag=_LENGTH)
                self._given += [one, self.comm.Isend(text, dest=other, tag=_ORDERS), text, length]

    def ordered(self) -> ProcessMessage | None:
        """What rank 0 has said since, if anything."""
        import numpy as np

        try:
            if self._next is None:
                length = np.zeros(1, np.int64)
                self._next = length, self.comm.Irecv(length, source=0, tag=_LENGTH)
            length, request = self._next
            if not request.Test():
                return None
            self._next = None
            text = np.empty(int(length[0]), np.uint8)
            self.comm.Recv(text, source=0, tag=_ORDERS)
        except self._mpi.Exception:
            raise RankLost(name_of(0), "its process ended") from None
        line: ProcessMessage = msgspec.json.decode(text.tobytes(), type=MpiTask | MpiDone)
        return line

    def group(self, told: Callable[[str], None] = lambda what: None) -> MpiCollective:
        """For one run; all living ranks call it."""
        from shoal.strategies.averaging.mpi import MpiCollective

        found = MpiCollective(self.comm, told, self._is_over)
        self._living = lambda: found.living
        return found

    def _is_over(self) -> bool:
        if self.rank:
            self.over = self.over or isinstance(self.ordered(), MpiDone)
        return self.over

    def leave(self, code: int) -> None:
        """All together: mpirun then takes it for an end in order.

        Where a rank has died, or was cut short in a sum, MPI may wait for it for ever: then this process ends as it is.
        """
        if len(self._living()) == self.size:
            guard = threading.Timer(_LEAVE_WITHIN, os._exit, (code,))
            guard.daemon = True
            guard.start()
            self._mpi.Finalize()
            guard.cancel()
        else:
            os._exit(code)


_world: MpiWorld | None = None


def world() -> MpiWorld:
    """This process's; made when first asked for, by all ranks."""
    global _world
    if _world is None:
        _world = MpiWorld()
    return _world


def take_part(call: Callable[[MpiHead], object]) -> object:
    """Have the command run by rank 0; the other ranks follow."""
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
    """All that a rank does but the first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # rank 0 hears the same, and needs us to come to an end
    here = world()
    try:
        while not here.over and not isinstance(line := here.ordered(), MpiDone):
            if isinstance(line, MpiTask):
                _work(here, line.work)
            else:
                time.sleep(_NAP)
    except RankLost as error:  # rank 0 is gone: so do all
        if here.rank == 1 and not os.environ.get(OURS):
            why = f"{error.who} is gone ({error.why}), and all others end with it"
            print(f"Error: {why}: shoal train --resume goes on from what was kept", file=sys.stderr, flush=True)
        os._exit(1)
    here.leave(0)


def _work(here: MpiWorld, work: Mapping[str, Any]) -> None:
    from shoal.strategies.averaging.processes import RankSpec, follow

    group = here.group(_told_of_rank_0 if here.rank == 1 else lambda what: None)
    try:
        follow(msgspec.convert(work, RankSpec), group)
        group.part()
    except RankLost:
        if not here.over:
            raise
    except BaseException:
        traceback.print_exc()
        end_hard()


def _told_of_rank_0(what: str) -> None:
    """Of all others it tells itself; when it is stopped it cannot."""
    if what.startswith("rank 0 ") and "it is stopped" in what:
        print(f"warning: {what}", file=sys.stderr, flush=True)


class MpiProcesses:
    """The ranks besides rank 0, for one run."""

    def __init__(self, work: Mapping[str, Any], told: Callable[[str], None]) -> None:
        self._work, self._told = dict(work), told
        self._group: MpiCollective | None = None

    @property
    def pids(self) -> dict[str, int]:
        group = self._group
        return {} if group is None else {name_of(one): group.pids[one] for one in group.living if one}

    def start(self) -> Collective:
        here = world()
        here.order(MpiTask(self._work))
        self._group = here.group(self._told)
        return self._group

    def why(self, rank: int) -> str:
        return "its process ended"

    def finish(self) -> None:
        """All have finished the last sum; they wait for the next orders."""
        if self._group is not None:
            self._group.part()

    def close(self) -> None:
        """Whoever still waits for a sum hears of it."""
        if self._group is not None and not self._group.parted:
            world().order(MpiDone())


def end_hard() -> None:
    """By a signal: an exit that was not agreed with all others is not noticed by mpirun where ranks may die, and all would wait."""
    flush()
    os.kill(os.getpid(), signal.SIGKILL)
