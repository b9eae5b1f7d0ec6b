"""``import shoal`` and ``shoal --help`` import no heavy package.

A heavy package is imported when it is first used. The times are printed (``pytest -s``) and not
asserted, since machines differ.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = ("numba", "zmq", "numpy", "torch", "rich", "scipy", "safetensors", "psutil")


def heavy_after(code: str) -> list[str]:
    """The heavy packages that a fresh Python process has imported after this code."""
    look = f"import sys; print('\\nheavy:', *[name for name in {HEAVY!r} if name in sys.modules])"
    start = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{look}"], capture_output=True, text=True, timeout=60, check=True
    )
    print(f"{(time.monotonic() - start) * 1_000:.0f} ms: {code!r}")
    return ran.stdout.splitlines()[-1].split()[1:]


def test_a_bare_interpreter_is_the_measure() -> None:
    assert heavy_after("pass") == []
    assert heavy_after("import numpy") == ["numpy"]  # the check does find an import


def test_import_shoal_imports_nothing_heavy() -> None:
    assert heavy_after("import shoal") == []
    assert heavy_after("import shoal; shoal.__version__; dir(shoal)") == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["limits"], ["simulate", "--help"]])
def test_the_command_line_answers_without_anything_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from shoal.cli.main import main
try:
    main({arguments!r}, prog_name="shoal")
except SystemExit as end:
    assert end.code in (0, None), end.code
"""
    assert heavy_after(code) == []


def test_the_description_of_a_table_and_an_error_import_nothing_heavy() -> None:
    assert heavy_after("from shoal import Sparse, Dense, ShoalError; Sparse(keys=10)") == []


def test_help_names_the_commands() -> None:
    start = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-m", "shoal", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    print(f"{(time.monotonic() - start) * 1_000:.0f} ms: shoal --help")
    assert "simulate" in ran.stdout


def test_an_interrupt_waits_until_what_is_being_imported_is_there() -> None:
    code = """
import os, signal, sys
import shoal

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "shoal.events":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
try:
    shoal.Job
except KeyboardInterrupt:
    print("shoal.events" in sys.modules, "shoal.job" in sys.modules, flush=True)
    shoal.Job
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True True\n", "")
