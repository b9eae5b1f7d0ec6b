"""Test processes in a fresh clone share the work of rewriting asserts.

pytest compiles every test file with asserts that show their values, and keeps the result beside the
file. Three processes that collect the same files in the same order all do all of it, which takes
longer than to import them. So each begins with another part of the files. This calls functions of
pytest that are not public: where they have changed, nothing is shared and nothing is lost.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def share_rewriting(config: pytest.Config, number: int, processes: int) -> None:
    """Rewrites the asserts of all test files that no process has done yet.

    It begins with a part of its own.
    """
    try:
        from _pytest.assertion import rewrite
        from _pytest.assertion.rewrite import _read_pyc, _rewrite_test, _write_pyc, assertstate_key, try_makedirs

        if sys.dont_write_bytecode:
            return
        files = sorted(Path(__file__).parents[1].rglob("test_*.py"))
        for part in range(processes):
            for path in files[(number + part) % processes :: processes]:
                folder = rewrite.get_cache_dir(path)
                kept = folder / (path.name[:-3] + rewrite.PYC_TAIL)
                if try_makedirs(folder) and _read_pyc(path, kept) is None:
                    stat, code = _rewrite_test(path, config)
                    _write_pyc(config.stash[assertstate_key], code, stat, kept)
    except (ImportError, AttributeError, KeyError, TypeError, ValueError, SyntaxError, OSError):
        return  # pytest does it, and reports what is wrong
