"""Kernels are generated from rules: their text, their refusals, and no edit is missed."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import Invalid
from shoal.files import cache_folder
from shoal.store.table import codegen
from shoal.store.table.codegen import dense_kernels
from shoal.store.table.function_source import FunctionSource, _tree
from shoal.store.table.update import UpdateRule, rule_named

Answer = tuple[float, tuple[float, ...]]

HALF = 0.5
NOBODY = float("inf")
LIST = [1.0]


def helper(x: float, by: float = 2.0) -> float:
    return np.sqrt(x * by) * HALF  # type: ignore[no-any-return]


def uses_much(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
    """A rule with a global, a helper with a default, builtins, math and a loop."""
    total = 0.0
    for one in state:
        total += abs(one)
    return min(weight + helper(gradient * gradient) + math.exp(total) * settings.step, NOBODY), (gradient, weight)


def run(kernels: Any, words: int, gradient: float, settings: tuple[float, ...] = ()) -> list[float]:
    """Returns the row after one gradient, from weight 1 and state 0."""
    slab = np.zeros((1, words), np.float32)
    slab[0, 0] = 1.0
    kernels.push_range(slab, 0, 0, np.full((1, 1), gradient, np.float32), np.array(settings, np.float64))
    return [float(word) for word in slab[0]]


def test_a_rule_may_use_helpers_constants_and_math() -> None:
    rule = UpdateRule("uses_much", uses_much, 2, {"step": 0.25})
    weight, state = uses_much(1.0, (0.0, 0.0), 3.0, rule.settings({}))
    assert run(dense_kernels(rule), 3, 3.0, (0.25,)) == [np.float32(weight), *state]


def test_the_text_holds_all_that_the_function_refers_to() -> None:
    source = FunctionSource("uses_much")
    assert source.add(uses_much)
    text = source.text()
    for line in (
        "HALF = 0.5",
        'NOBODY = float("inf")',
        "import numpy as np",
        "import math as math",
        "def helper(x, by=2.0):",
    ):
        assert line in text
    assert "Answer" not in text  # annotations are left out


def test_a_closure_is_written_out_with_its_values() -> None:
    def make(factor: float) -> UpdateRule:
        def scaled(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
            return weight + factor * gradient, state

        return UpdateRule("scaled", scaled, 0)

    texts = []
    for factor in (2.0, 3.0):
        source = FunctionSource("scaled")
        assert source.add(make(factor).function)
        texts.append(source.text())
    assert "factor = 2.0" in texts[0]
    assert "factor = 3.0" in texts[1]


def test_the_same_text_is_compiled_once_in_a_process() -> None:
    rule = rule_named("sum")
    assert dense_kernels(rule) == dense_kernels(UpdateRule("sum", rule.function, 0))


def test_the_signature_is_fixed_before_any_data_is_seen() -> None:
    kernels = dense_kernels(rule_named("sum"))
    with pytest.raises(TypeError, match="No matching definition"):
        kernels.push_range(np.zeros((1, 1)), 0, 0, np.zeros((1, 1)), np.zeros(0))


def uses_a_list(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
    return weight + LIST[0], state


def uses_a_module(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
    return weight + len(os.sep), state


def uses_chance(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
    return weight + np.random.random(), state


def stops_half_way(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
    if gradient < 0:
        raise ValueError
    return weight, state


def forgets_its_state(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
    return weight, ()


def has_strings(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
    return weight + len({"a": 1}.items()), state


@pytest.mark.parametrize(
    ("function", "state", "why"),
    [
        (uses_a_list, 0, r"refers to 'LIST', which is \[1.0\]"),
        (uses_a_module, 0, "refers to 'os', which is <module 'os'"),
        (uses_chance, 0, "uses random numbers"),
        (stops_half_way, 0, "has `raise` in stops_half_way"),
        (forgets_its_state, 1, r"returned \(1.0, \(\)\): it declares state=1"),
    ],
)
def test_what_cannot_be_inlined_is_refused_by_name(function: Any, state: int, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        dense_kernels(UpdateRule(function.__name__, function, state))


def test_what_numba_cannot_compile_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))

    def mixes(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Any:
        if gradient > 5:
            return "much", state
        return weight, state

    with pytest.raises(Invalid, match="update 'mixes' cannot be compiled; numba says"):
        dense_kernels(UpdateRule("mixes", mixes, 0))


def test_division_by_zero_gives_infinity_and_no_error() -> None:
    def divides(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
        return weight / gradient, state

    assert run(dense_kernels(UpdateRule("divides", divides, 0)), 1, 0.0) == [math.inf]


@pytest.mark.slow
def test_a_function_without_source_is_compiled_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    names: dict[str, Any] = {}
    exec("def bare(weight, state, gradient, settings): return weight + 7.0 * gradient, state", names)
    assert run(dense_kernels(UpdateRule("bare", names["bare"], 0)), 1, 2.0) == [15.0]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("SHOAL_CACHE", str(shared))
    monkeypatch.setattr(codegen, "_made", {})
    assert cache_folder() is None
    assert run(dense_kernels(rule_named("sum")), 1, 2.0) == [3.0]
    assert list(shared.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    assert cache_folder() is None


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache_folder() is None


def test_the_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "shoal"
    assert stat.S_IMODE((tmp_path / "shoal").stat().st_mode) == 0o700


def test_a_file_edited_after_its_import_is_not_taken_for_the_source(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text("def mine(weight, state, gradient, settings):\n    return weight + gradient, state\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert _tree(names["mine"]) is not None
    _tree.cache_clear()
    path.write_text("def mine(weight, state, gradient, settings):\n    return weight - gradient, state\n")
    assert _tree(names["mine"]) is None


RULES = """
from shoal.store.table.update import update

SCALE = 1.0

def helper(x):
    return x * 10.0

@update(step=1.0)
def mine(weight, state, gradient, settings):
    return weight + settings.step * SCALE * helper(gradient), state
"""

RUN = """
import json
import numpy as np
import rules
from shoal.store.table.codegen import dense_kernels

kernels = dense_kernels(rules.mine.rule)
slab = np.zeros((1, 1), np.float32)
kernels.push_range(slab, 0, 0, np.ones((1, 1), np.float32), np.ones(1))
stats = [getattr(kernels, name).stats for name in ("push_rows", "push_range")]
hits, misses = sum(len(s.cache_hits) for s in stats), sum(len(s.cache_misses) for s in stats)
print(json.dumps([float(slab[0, 0]), hits, misses]))
"""


def start(folder: Path, text: str, cache: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "rules.py").write_text(text)
    path = os.pathsep.join([str(folder), *sys.path])
    # Python's own cache of a module misses an edit of the same length within the same second.
    env = {**os.environ, "SHOAL_CACHE": str(cache), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-c", RUN], env=env, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> list[float]:
    """Returns what a fresh process printed.

    The weight after one gradient of 1, kernels found in numba's cache, kernels compiled.
    """
    out, _ = process.communicate()
    found: list[float] = json.loads(out)
    return found


@pytest.mark.slow
def test_an_edit_is_never_missed_and_what_is_unchanged_is_never_compiled_again(tmp_path: Path) -> None:
    here, cache = tmp_path / "here", tmp_path / "cache"
    assert answer(start(here, RULES, cache)) == [10.0, 0, 2]
    function = start(here, RULES.replace("weight +", "weight -"), cache)
    assert answer(function) == [-10.0, 0, 2]
    helper = start(here, RULES.replace("x * 10.0", "x * 20.0"), cache)
    constant = start(tmp_path / "there", RULES.replace("SCALE = 1.0", "SCALE = 3.0"), cache)
    assert answer(helper) == [20.0, 0, 2]
    assert answer(constant) == [30.0, 0, 2]
    assert answer(start(here, f"# only a comment\n{RULES}", cache)) == [10.0, 2, 0]
