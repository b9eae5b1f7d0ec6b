"""Code that a job names: modules with updates and filters of one's own, and files with networks.

A job that came over the wire names code, and a name is all that comes: it is imported here only if this host's operator named it,
too, on the command line (``--modules``). A file may lie elsewhere on this host than on the other: what counts is its own name, and the
operator's path is the one that is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from shoal.errors import Invalid
from shoal.job import Job
from shoal.models.linear import Linear

_NAMED = ("net", "loss", "metric")  # settings of a module that may be code: "file.py:name", "package.module:name"


def code_of(job: Job) -> list[str]:
    """Modules, and names in files, that whoever computes this job has to import."""
    found = list(job.launch.modules)
    if not isinstance(job.model, Linear):
        found += [value for name in _NAMED if ":" in (value := getattr(job.model, name))]
    return list(dict.fromkeys(found))


def allowed(job: Job, modules: Sequence[str]) -> Job:
    """The job with this host's own code, as its operator named it; Invalid if something is not named."""
    own = {_known_as(one): one for one in modules}
    if missing := [one for one in code_of(job) if _known_as(one) not in own]:
        options = " ".join(f"--modules {_known_as(one)}" for one in missing)
        raise Invalid(
            f"the run needs code of its own ({', '.join(missing)}), and nothing is imported here because somebody else names it: if "
            f"you have it and trust it, say so ({options})"
        )
    extra = [one for one in modules if ":" not in one]  # more may be imported than the run needs
    job = replace(job, launch=replace(job.launch, modules=extra))
    if isinstance(job.model, Linear):
        return job
    named = {name: getattr(job.model, name) for name in _NAMED}
    code = {name: own[_known_as(value)] for name, value in named.items() if ":" in value}
    return replace(job, model=replace(job.model, **code))


def _known_as(named: str) -> str:
    """A file without its folder."""
    path, colon, name = named.rpartition(":") if ".py:" in named else (named, "", "")
    return f"{Path(path).name}{colon}{name}" if colon else named
