"""Writes job scripts for the batch schedulers OAR and Slurm (one host)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from shoal.errors import Invalid

_WARN = 60  # seconds before the time limit, for saving the run

_OAR = """\
#!/bin/bash
#OAR -n {name}
#OAR -l /nodes=1/core={cores},walltime={walltime}
#OAR -O {name}.%jobid%.out
#OAR -E {name}.%jobid%.err
#OAR --checkpoint={warn}
#OAR --signal=15
# Submit it:  {submit}
"""
_SLURM = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cores}
#SBATCH --time={walltime}
#SBATCH --output={name}.%j.out
#SBATCH --error={name}.%j.err
#SBATCH --signal=B:TERM@{warn}
# Submit it:  {submit}
"""
_BODY = """\
#
# One host: all servers and workers run there.
# {warn} s before the time is up the scheduler sends SIGTERM{saved}

set -eu
cd "${{{folder}:-.}}"
{environment}
exec {command}
"""
_SCHEDULERS = {"oar": (_OAR, "OAR_WORKING_DIRECTORY"), "slurm": (_SLURM, "SLURM_SUBMIT_DIR")}
SCHEDULERS = tuple(_SCHEDULERS)


def submit(scheduler: str, file: str) -> str:
    if scheduler == "slurm":
        return f"sbatch {shlex.quote(file)}"
    # it runs the file itself
    return f"oarsub -S {shlex.quote(file if file.startswith('/') else f'./{file}')}"


def batch_script(
    scheduler: str, command: Sequence[str], *, cores: int, walltime: str, file: str, environment: str = ""
) -> str:
    """A job script; ``environment`` is a venv's folder, ``file`` the script's own path."""
    if not re.fullmatch(r"\d{1,4}:[0-5]\d:[0-5]\d", walltime):
        raise Invalid(f"walltime {walltime!r}: needs hours:minutes:seconds, as in 02:00:00")
    head, folder = _SCHEDULERS[scheduler]
    activate = "# source .venv/bin/activate    # if shoal is in a virtual environment, name it here"
    if environment:
        activate = f"source {shlex.quote(environment)}/bin/activate"
    saved = ": what was learned is saved, and the same\n# script, submitted again, goes on with it."
    text = head + _BODY
    return text.format(
        name="shoal",
        cores=cores,
        walltime=walltime,
        warn=_WARN,
        submit=submit(scheduler, file),
        folder=folder,
        environment=activate,
        saved=saved if list(command[:2]) == ["shoal", "train"] else " to the workers.",
        command=shlex.join(command),
    )
