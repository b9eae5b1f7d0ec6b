"""Imports point in one direction, and protocol code is deterministic.

Both are checked on the source; nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("shoal/**/*.py"))
# They name the public API, so they may import from any level.
DOORS = ("shoal/__init__.py", "shoal/__main__.py")

# A module may import its own package and all packages below it. The packages of FRIENDS may import
# each other, and so may the single modules of the last level.
LEVELS = (
    ("cli",),
    ("sweep", "chaos", "torch", "testing"),
    ("run",),
    ("views",),
    ("simulation",),
    ("strategies",),
    ("launch",),
    ("training",),
    ("inspect",),
    ("client",),
    ("nodes",),
    ("job", "strategy"),
    ("schedule", "store", "cluster"),
    ("filters", "models"),
    ("data", "wire", "security"),
    (
        "tables",
        "keys",
        "events",
        "errors",
        "limits",
        "timing",
        "emulation",
        "settings_tree",
        "cache",
        "jit",
        "files",
        "decoding",
        "user_code",
        "registry",
        "interrupts",
        "background",
        "signals",
    ),
)
FRIENDS = ({"wire", "security"}, {"job", "strategy"})
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

PROTOCOL = (
    "shoal/store/",
    "shoal/cluster/",
    "shoal/schedule/",
    "shoal/wire/messages/",
    "shoal/wire/effects.py",
    *(
        f"shoal/strategies/peers/{name}.py"
        for name in ("broadcast", "leader", "mesh", "model_transfer", "ownership", "run_log")
    ),
)
BANNED = ("time", "random", "secrets", "uuid", "asyncio", "threading", "socket", "os")
MAY = {
    # It writes the kernels' source to a private folder, one thread at a time.
    "shoal/store/table/codegen.py": ("os", "threading"),
    # It looks up its arrays by id, and never iterates over them.
    "shoal/store/table/table.py": ("id",),
}


def room_of(path: str) -> str:
    return path.removeprefix("shoal/").split("/")[0].removesuffix(".py")


def imports(path: str, tree: ast.Module) -> Iterator[str]:
    """Yields the full name of every import in the file.

    Imports inside functions and under TYPE_CHECKING are included.
    """
    package = path.removesuffix("/__init__.py").removesuffix(".py").split("/")
    if not path.endswith("/__init__.py"):
        package.pop()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*source, name.name]) for name in node.names)


def wrong_way(path: str, source: str) -> list[str]:
    """Imports of a level above or beside this one, or of ``shoal`` itself."""
    room = room_of(path)
    wrong = []
    for name in imports(path, ast.parse(source)):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top != "shoal" or (target == room and room in LEVEL):
            continue
        friends = {room, target} in FRIENDS or LEVEL.get(target) == LEVEL[room] == len(LEVELS) - 1
        if target not in LEVEL or not (LEVEL[target] > LEVEL[room] or friends):
            wrong.append(name)
    return wrong


def surprises(path: str, source: str) -> list[str]:
    """Everything that could make two simulated runs of one seed differ.

    This means clocks, random numbers, threads, sockets and unstable orders.
    """
    tree = ast.parse(source)
    banned = [name for name in BANNED if name not in MAY.get(path, ())]
    found = [f"import {name}" for name in imports(path, tree) if name.split(".")[0] in banned]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="hash" | "id" as name)) if name not in MAY.get(path, ()):
                found.append(f"line {node.lineno}: {name}() differs from process to process")
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated) if is_set(iterated):
                found.append(f"line {iterated.lineno}: a set has no order")
    return found


def is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
    return False


@pytest.mark.parametrize("path", [path for path in MODULES if path not in DOORS])
def test_imports_point_one_way(path: str) -> None:
    assert room_of(path) in LEVEL, f"give {room_of(path)!r} its place among the levels"
    assert wrong_way(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize("path", [path for path in MODULES if path.startswith(PROTOCOL)])
def test_protocol_code_is_a_function_of_its_inputs(path: str) -> None:
    assert surprises(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("shoal/store/client/client.py", "from shoal.nodes.loop import run"),
        # A package of the same level.
        ("shoal/store/client/client.py", "from shoal.cluster import place"),
        ("shoal/store/query.py", "from ..cluster import place"),
        ("shoal/store/__init__.py", "from ..nodes import loop"),
        ("shoal/wire/zmq.py", "if TYPE_CHECKING:\n    from shoal.store import client"),
        ("shoal/wire/zmq.py", "def late():\n    import shoal.store.client.client"),
        ("shoal/keys.py", "from shoal import wire"),
        ("shoal/views/page.py", "import shoal"),
        ("shoal/views/page.py", "from shoal import Client"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_seen(path: str, source: str) -> None:
    assert wrong_way(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("shoal/store/client/client.py", "from shoal.store.server.ledger import Ledger\nfrom .clock import Clocks"),
        ("shoal/store/client/client.py", "from shoal.wire import messages\nfrom shoal import errors\nimport numpy"),
        ("shoal/tables.py", "from shoal.errors import Invalid\nfrom shoal import limits"),
    ],
)
def test_an_import_that_points_down_or_home_is_fine(path: str, source: str) -> None:
    assert wrong_way(path, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import path",
        "import os.path",
        "from threading import Lock",
        "hash('a')",
        "key = id(object())",
        "for name in {'a', 'b'}: pass",
        "names = [name for name in set(others)]",
    ],
)
def test_a_surprise_is_seen(source: str) -> None:
    assert surprises("shoal/store/server/primary.py", source)


@pytest.mark.parametrize("source", ["for name in sorted({'a', 'b'}): pass", "self.id(3)", "ok = name in {'a', 'b'}"])
def test_an_order_that_is_stated_is_no_surprise(source: str) -> None:
    assert surprises("shoal/store/server/primary.py", source) == []


def test_the_kernel_generator_may_ask_for_its_folder_and_for_nothing_else() -> None:
    assert surprises("shoal/store/table/codegen.py", "import os") == []
    assert surprises("shoal/store/table/codegen.py", "import random")
