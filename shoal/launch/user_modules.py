"""The user's code that a job names: modules with updates and filters, files with networks.

A job from another host only names code. It is imported here only if this host's operator names it,
too (``--modules``). A file may have another folder on this host: its file name is compared, and the
operator's path is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from shoal.errors import Invalid
from shoal.job import Job
from shoal.models.linear import Linear

# settings that may be code: "file.py:name", "package.module:name"
_NAMED = ("net", "loss", "metric")


def code_of(job: Job) -> list[str]:
    """The modules and "file:name" references that computing this job imports."""
    found = list(job.launch.modules)
    if not isinstance(job.model, Linear):
        found += [value for name in _NAMED if ":" in (value := getattr(job.model, name))]
    return list(dict.fromkeys(found))


def allowed(job: Job, modules: Sequence[str]) -> Job:
    """The job with this host's own code; raises Invalid if the operator did not name some of it."""
    own = {_known_as(one): one for one in modules}
    check_named([one for one in code_of(job) if _known_as(one) not in own])
    extra = [one for one in modules if ":" not in one]  # more may be imported than the run needs
    job = replace(job, launch=replace(job.launch, modules=extra))
    if isinstance(job.model, Linear):
        return job
    named = {name: getattr(job.model, name) for name in _NAMED}
    code = {name: own[_known_as(value)] for name, value in named.items() if ":" in value}
    return replace(job, model=replace(job.model, **code))


def check_named(missing: Sequence[str]) -> None:
    if missing:
        options = " ".join(f"--modules {_known_as(one)}" for one in missing)
        raise Invalid(
            f"the run needs this code: {', '.join(missing)}. Nothing is imported on another host's word: if you have "
            f"it and trust it, name it ({options})"
        )


def _known_as(named: str) -> str:
    path, colon, name = named.rpartition(":") if ".py:" in named else (named, "", "")
    return f"{Path(path).name}{colon}{name}" if colon else named
