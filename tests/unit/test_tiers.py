"""Tests are sorted into tiers, and the promises that each test shows are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness import promises
from tests.harness.tiers import matches


@pytest.mark.parametrize(
    ("pattern", "variant", "is_match"),
    [
        ("tcp", "tcp", True),
        ("tcp", "tcp-9", False),
        ("tcp-*", "tcp-9", True),
        ("*-processes-*", "sync-processes-it_stops", True),
        ("*", "", True),
        ("a.c", "abc", False),
    ],
)
def test_a_pattern_is_for_the_whole_id_of_a_variant(pattern: str, variant: str, is_match: bool) -> None:
    item: Any = SimpleNamespace(nodeid=f"tests/test_it.py::test_it[{variant}]")
    assert matches(pattern, item) is is_match


def test_promises_are_named_one_by_one_or_from_to() -> None:
    assert promises.named("F5, F7-F9 and I1 to I3; not F100, FP16 or v1") == ["F5", "F7", "F8", "F9", "I1", "I2", "I3"]


def test_rows_of_the_matrix_name_files_and_tests() -> None:
    found = promises.in_docs()
    assert ("tests/chaos/test_faults_workers.py", "") in found["F2"]
    assert found["F7"] >= found["F5"] != set()  # its row says "as F5"
    assert ("", "test_whoever_answers_with_another_key_than_the_address_says_hears_nothing") in found["T2"]


def test_a_promise_without_a_test_is_told() -> None:
    tests = {"change": ["test"]}
    listed = (promises.Path(promises.__file__).parent / "promises.txt").read_text().replace(":", "").split()
    everything = dict.fromkeys(listed, tests)
    assert list(promises.broken(everything)) == []
    assert list(promises.broken(everything | {"F1": {"slow": ["test"]}})) == ["F1 has no test in `make test` any more"]
    assert list(promises.broken(everything | {"F20": {}})) == ["F20 has no test at all any more"]
