"""Whether two runs of one job must end at the same model bit for bit, and whether they did.

Sync promises it for any number of workers, servers and copies, and through every fault, with the same code and library
versions. Two exceptions are reported when they happen: a slot that was dealt again may have read weights of which some were a
step newer, and a slot that nobody could compute is void.
"""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from pathlib import Path

from shoal.job import Job
from shoal.keys import Values

PACKAGE = Path(__file__).parent.parent
LIBRARIES = ("numpy", "numba", "torch")


def promises_same_bits(job: Job) -> bool:
    """Sync without delay; a filter may lose some of a push, and loses other parts when it is sent by another worker."""
    return job.strategy.name == "sync" and not getattr(job.strategy, "max_delay", 0) and not job.filters


def model_digest(weights: Values) -> str:
    """The same for the same bits."""
    return hashlib.sha256(weights.tobytes()).hexdigest()


def fingerprint() -> str:
    """Of all that the bits of a model depend on besides its job: our own code, the libraries, the machine."""
    found = hashlib.sha256(f"{platform.machine()} {platform.processor()} {platform.python_version()}".encode())
    for name in LIBRARIES:
        try:
            found.update(f"{name} {metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            continue
    for file in sorted(PACKAGE.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()
