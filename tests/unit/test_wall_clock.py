"""No decision depends on the wall clock, which may jump (F27).

The modules that read it are listed here, each with its reason.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
READERS = {"time", "time_ns", "ctime", "asctime", "localtime", "gmtime", "strftime", "CLOCK_REALTIME", "CLOCK_TAI"}
DATES = {"now", "today", "utcnow"}
ALLOWED = {
    "shoal/data/csr_file.py": "a folder that a killed writer left is swept a minute later, if nobody has locked it",
    "shoal/security/expiry.py": "a key is good until a day of the calendar",
}


def wall_clocks(source: str) -> list[str]:
    """The lines that read the wall clock, under any name that its module was imported by."""
    tree, found = ast.parse(source), list[str]()
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(one.asname or one.name): one.name for one in node.names if one.name in ("time", "datetime")}
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            found += [f"line {node.lineno}: from time import {one.name}" for one in node.names if one.name in READERS]
            modules |= {(one.asname or one.name): "datetime" for one in node.names if one.name in ("datetime", "date")}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        value = node.value
        name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
        if modules.get(name) == "time" and node.attr in READERS:
            found.append(f"line {node.lineno}: {name}.{node.attr}")
        if name in ("datetime", "date", *modules) and node.attr in DATES:
            found.append(f"line {node.lineno}: {name}.{node.attr}")
    return found


def test_nobody_reads_the_wall_clock_but_those_who_are_named() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "shoal").rglob("*.py"))
        if (lines := wall_clocks(path.read_text()))
    }
    assert {path: lines for path, lines in found.items() if path not in ALLOWED} == {}
    assert set(found) == set(ALLOWED)  # no module is listed without need


def test_a_wall_clock_is_found_by_whatever_name() -> None:
    assert wall_clocks("import time\ntime.monotonic()\ntime.perf_counter()") == []
    assert wall_clocks("import time as t\nt.time()") == ["line 2: t.time"]
    assert wall_clocks("from time import time_ns") == ["line 1: from time import time_ns"]
    assert wall_clocks("import datetime\ndatetime.datetime.now()") == ["line 2: datetime.now"]
    assert wall_clocks("from datetime import date\ndate.today()") == ["line 2: date.today"]
    assert wall_clocks("from datetime import timedelta\ntimedelta(1)") == []
