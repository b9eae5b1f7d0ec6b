"""The process of one run of a sweep.

It reads its orders, a line, from standard input. When that closes, the run and the process end: so
nothing survives a killed sweep. Output goes to the run's log.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import threading
import time
import tomllib
from pathlib import Path

import msgspec

from shoal.signals import handle

GRACE = 20.0  # seconds for a run to end in order


class SweepOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The job, folder and cores of a run."""

    job: str  # TOML: JSON has no infinity
    folder: str
    cores: list[int]


def main() -> int:
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=SweepOrders)
    os.sched_setaffinity(0, orders.cores)
    handle((signal.SIGTERM, signal.SIGHUP), _interrupt)
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    began, before = time.monotonic(), busy(orders.cores)
    from shoal.errors import ShoalError
    from shoal.job import Job
    from shoal.run.run import execute
    from shoal.sweep.disk import MACHINE, MachineInfo

    try:
        execute(Job.of(tomllib.loads(orders.job)), Path(orders.folder), progress=_say)
    except ShoalError as error:
        _say(f"Error: {error}")
        return 1
    finally:
        with contextlib.suppress(OSError):  # a full disk: the figure is missing
            others = _others(orders.cores, before, time.monotonic() - began)
            Path(orders.folder, MACHINE).write_bytes(msgspec.json.encode(MachineInfo(orders.cores, others)))
    return 0


def _others(cores: list[int], before: float | None, seconds: float) -> float | None:
    """The share of its cores that others took meanwhile; None if the machine does not say."""
    now = busy(cores)
    if now is None or before is None or now <= before:
        return None
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ours = sum(one.ru_utime + one.ru_stime for one in usages)
    return min(1.0, max(0.0, (now - before - ours) / (seconds * len(cores))))


def busy(cores: list[int]) -> float | None:
    """Busy seconds of these cores since boot; None if unknown."""
    import psutil

    with contextlib.suppress(Exception):  # a container may hide it
        each = psutil.cpu_times(percpu=True)
        times = [each[core] for core in cores]
        return float(sum(sum(one) - one.idle - getattr(one, "iowait", 0.0) for one in times))
    return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _interrupt(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: the run is ending
    raise SystemExit(128 + number)


def _end_with_the_sweep() -> None:
    poll = select.poll()
    poll.register(0, 0)  # a hang-up is always reported
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
