"""Finds which tests show which promise in which tier: F1-F44, T1-T16, P1-P14 and I1-I16.

A test shows a promise if its docstring names it (F5, or F1-F4 for several), or if
docs/guarantees/faults.md names the test for it. Where no single test of a file does, all of them
show what the file's docstring, docs/guarantees/faults.md or ``CHECKED`` name the file for.
``promises.txt`` lists what must have a test in `make test` (change), or in any tier.

    python -m pytest --collect-only -q --promises
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

_ID = re.compile(r"\b([PIFT])(\d{1,2})\b(?:\s*(?:-|to)\s*\1?(\d{1,2})\b)?")
_TEST = re.compile(r"(tests/[\w/]+\.py|test_\w+\.py)?(?:::)?(test_\w+)?")

Shown = Mapping[str, Mapping[str, Sequence[str]]]  # promise: tier: tests


def named(text: str | None) -> list[str]:
    """Returns the promises that a text names."""
    found = []
    for kind, first, last in _ID.findall(text or ""):
        found += [f"{kind}{number}" for number in range(int(first), int(last or first) + 1)]
    return list(dict.fromkeys(found))


def in_docs() -> dict[str, set[tuple[str, str]]]:
    """Returns the files and tests of each promise with a row in docs/guarantees/faults.md.

    Of each pair one may be empty.
    """
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    text = (ROOT / "docs/guarantees/faults.md").read_text()
    likened: list[tuple[str, str]] = []
    for line in text.splitlines():
        cells = line.split(" | ")
        if row := re.match(r"\| ([FPIT]\d+)\b", line):
            promise = row[1]
            found[promise] |= tests_in(line)
            likened += [(promise, other) for other in re.findall(r"\bas ([FPIT]\d+)\b", " ".join(cells[1:]))]
    for promise, other in likened:
        found[promise] |= found[other]
    return found


def tests_in(text: str) -> set[tuple[str, str]]:
    return {(file, test) for file, test in _TEST.findall(text) if file or test}


# Promises and invariants that whole files are about, or that their checker evaluates in every
# schedule.
_SEEDS = "simulation/test_seeds.py"
CHECKED: dict[str, tuple[str, ...]] = {
    "P1-P2": (_SEEDS, "chaos/test_faults_servers.py", "chaos/test_faults_workers.py", "chaos/test_drill.py"),
    "P3": (_SEEDS, "integration/test_equality.py", "chaos/test_arrivals.py"),
    "P4-P5": (_SEEDS, "integration/test_consistency.py"),
    "P6": (_SEEDS, "chaos/test_faults_servers.py", "network/test_partitions.py"),
    "P7": ("store/test_checkpoint.py", "property/test_checkpoint_fuzz.py", "simulation/test_disk.py"),
    "P8": ("chaos/test_rollback.py", "chaos/test_resume.py"),
    "P9": ("simulation/test_moves.py", "chaos/test_elastic.py"),
    "P10": ("integration/test_bad_input.py", "chaos/test_endings.py"),
    "P11": ("integration/test_allreduce.py", "integration/test_mpi.py"),
    "P12": ("simulation/test_gossiping.py", "chaos/test_gossip.py"),
    "P13": ("chaos/test_hogwild.py", "strategies/test_racing.py"),
    "P14": ("integration/test_keys.py", "integration/test_strangers.py", "property/test_decoder_fuzz.py"),
    "I1-I9": (_SEEDS,),
    "I10": ("simulation/test_gossiping.py",),
    "I11": ("integration/test_allreduce.py", "integration/test_mpi.py"),
    "I12-I15": (_SEEDS,),
    "I16": ("chaos/test_drill.py", "conformance/test_strategies.py"),
}


def shown(items: Iterable[pytest.Item], tier_of: Callable[[pytest.Item], str]) -> Shown:
    by_file: dict[str, list[str]] = defaultdict(list)
    by_test: dict[str, list[str]] = defaultdict(list)
    for promise, places in in_docs().items():
        for file, test in places:
            (by_test[test] if test else by_file[file]).append(promise)
    for promises, files in CHECKED.items():
        for file in files:
            by_file[file] += named(promises)
    # Promises that single tests of a file are about, with the file.
    special: set[tuple[str, str]] = set()
    general: list[tuple[pytest.Item, str, str]] = []
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        path, _, name = item.nodeid.partition("[")[0].partition("::")
        own = dict.fromkeys([*named(getattr(_function(item), "__doc__", "")), *by_test[name]])
        for promise in own:
            special.add((promise, path))
            found[promise][tier_of(item)].append(item.nodeid)
        steps = path.split("/")
        # A file may be named without its folders.
        files = ["/".join(steps[start:]) for start in range(len(steps))]
        whole = dict.fromkeys([*_of_module(item.path), *(one for file in files for one in by_file.get(file, ()))])
        general += [(item, promise, path) for promise in whole if promise not in own]
    for item, promise, path in general:
        if (promise, path) not in special:
            found[promise][tier_of(item)].append(item.nodeid)
    return found


def _function(item: pytest.Item) -> Any:
    return getattr(item, "function", None)


@cache
def _of_module(path: Path) -> tuple[str, ...]:
    head = re.match(r'"""(.*?)"""', path.read_text(), re.DOTALL)
    return tuple(named(head[1] if head else ""))


def order(promise: str) -> tuple[str, int]:
    return promise[0], int(promise[1:])


def table(found: Shown, tiers: Sequence[str]) -> str:
    lines = [f"{'':>4}" + "".join(f"{tier:>8}" for tier in tiers)]
    for promise in sorted(found, key=order):
        counts = "".join(f"{len(found[promise].get(tier, ())):>8}" for tier in tiers)
        first = next((tests[0] for tier in tiers if (tests := found[promise].get(tier))), "-")
        lines.append(f"{promise:>4}{counts}  {first}")
    return "\n".join(lines)


def broken(found: Shown) -> Iterable[str]:
    """Yields promises that have no test any more in the tier of each change, or in any."""
    for line in (Path(__file__).parent / "promises.txt").read_text().splitlines():
        tier, _, promises = line.partition(":")
        for promise in promises.split():
            tests = found.get(promise, {})
            if not (tests.get("change") if tier == "change" else any(tests.values())):
                yield f"{promise} has no test {'in `make test`' if tier == 'change' else 'at all'} any more"
