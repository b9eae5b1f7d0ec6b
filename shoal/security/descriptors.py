"""How many descriptors a process may have, and how many of them are for those who call it."""

from __future__ import annotations

import contextlib
import os
import resource

from shoal import limits


def room() -> int:
    """For connections: of the descriptors of this process, all but those that are in use and some for files and calls of its own."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    free = limits.CONNECTIONS if soft == resource.RLIM_INFINITY else soft - used - limits.DESCRIPTORS_KEPT
    return max(limits.CONNECTIONS_LEAST, min(limits.CONNECTIONS, free))


def raise_descriptors() -> None:
    """As many as this process may have: for those that are ours alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.CONNECTIONS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
