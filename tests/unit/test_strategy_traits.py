"""No code outside ``strategies`` asks which strategy a job has.

Where a strategy matters to other code, it has a trait for it (``Strategy``).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = [path for path in sorted(ROOT.glob("shoal/**/*.py")) if "strategies" not in path.parts]


def asks(source: str) -> list[int]:
    """The lines that test the type of a strategy with isinstance() or type()."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "type")
        and node.args
        and isinstance(node.args[0], ast.Name | ast.Attribute)
        and (node.args[0].id if isinstance(node.args[0], ast.Name) else node.args[0].attr).endswith("strategy")
    ]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_outside_asks_which_strategy_it_is(path: Path) -> None:
    assert asks(path.read_text()) == [], "give Strategy a trait, or a method that each strategy has its own way of"


def test_the_check_sees_such_a_question() -> None:
    assert asks("isinstance(self.job.strategy, Gossip)\nisinstance(strategy, A | B)\nisinstance(tree, dict)") == [1, 2]
