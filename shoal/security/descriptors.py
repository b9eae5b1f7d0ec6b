"""File descriptor limits: how many there are, and how many connections may use."""

from __future__ import annotations

import contextlib
import os
import resource

from shoal import limits


def room() -> int:
    """Descriptors for connections: all but those in use and a reserve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    free = limits.CONNECTIONS if soft == resource.RLIM_INFINITY else soft - used - limits.DESCRIPTORS_KEPT
    return max(limits.CONNECTIONS_LEAST, min(limits.CONNECTIONS, free))


def raise_descriptors() -> None:
    """Raise the soft limit to the hard limit, in our own processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.CONNECTIONS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
