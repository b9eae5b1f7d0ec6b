"""Prints modules, lines and statements of the package by folder, now and before.

    python tools/size.py           prints the table; ``size_before.txt`` has the numbers of before
    python tools/size.py --save    stores the numbers of now as those of before

It reports and never fails: the numbers are for the reader of a change.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEFORE = Path(__file__).with_name("size_before.txt")
Sizes = dict[str, tuple[int, int, int]]  # by folder: modules, lines, statements


def measure(package: Path) -> Sizes:
    """The sizes of every folder of the package, of its own modules ("."), and their sum."""
    found: dict[str, tuple[int, int, int]] = {}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        inner = path.relative_to(package).parts
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        for name in (inner[0] if len(inner) > 1 else ".", "total"):
            modules, lines, before = found.get(name, (0, 0, 0))
            found[name] = modules + 1, lines + len(text.splitlines()), before + statements
    return found


def stored() -> Sizes:
    if not BEFORE.exists():
        return {}
    rows = (line.split() for line in BEFORE.read_text().splitlines() if not line.startswith("#"))
    return {name: (int(modules), int(lines), int(statements)) for name, modules, lines, statements in rows}


def save(sizes: Sizes) -> None:
    rows = [f"{name} {' '.join(map(str, numbers))}\n" for name, numbers in sorted(sizes.items())]
    BEFORE.write_text("# folder modules lines statements\n" + "".join(rows))


def table(now: Sizes, before: Sizes) -> str:
    names = [*sorted({*now, *before} - {"total"}), "total"]
    out = [f"{'shoal':14}" + "".join(f"{what:>11}{'before':>9}" for what in ("modules", "lines", "statements"))]
    for name in names:
        pairs = zip(now.get(name, (0, 0, 0)), before.get(name, (0, 0, 0)), strict=True)
        out.append(f"{name:14}" + "".join(f"{is_:>11,}{was:>9,}" for is_, was in pairs))
    return "\n".join(out)


if __name__ == "__main__":
    sizes = measure(ROOT / "shoal")
    if "--save" in sys.argv[1:]:
        save(sizes)
    print(table(sizes, stored()))
