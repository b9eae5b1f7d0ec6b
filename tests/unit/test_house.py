"""Rules that keep the package readable: names, classes, doors, cycles, sizes, prose."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from tests.unit.test_imports import MODULES, ROOT, imports

MOST_MODULES = 25  # in one package
FIRST_LINE = 90  # characters of the first line of a docstring
COLUMNS = 100  # of prose


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


NAMES = {name_of(path): path for path in MODULES}


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in MODULES:
        yield from ((path, node) for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))


@cache
def needed(path: str) -> frozenset[str]:
    """The modules of the package that a module imports, anywhere in it."""
    found = set()
    for name in imports(path, tree(path)):
        while name and name not in NAMES:
            name = name.rpartition(".")[0]
        if name not in ("", "shoal", name_of(path)):
            found.add(name)
    return frozenset(found)


# ---------------------------------------------------------------- classes


def test_a_class_name_stands_once_in_the_package() -> None:
    found = Counter(node.name for _, node in classes())
    assert [name for name, times in found.items() if times > 1] == []


def test_no_base_class_has_its_only_child_in_another_module() -> None:
    """Such a class is one class that was cut in two: compose it instead."""
    homes = {node.name: path for path, node in classes()}
    children = defaultdict(list)
    for path, node in classes():
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name):
                children[name.id].append((path, node.name))
    split = {
        base
        for base, (child, *others) in children.items()
        if base in homes and not others and child[0] != homes[base] and not is_interface(base) and base not in made()
    }
    assert split == set()


@cache
def made() -> frozenset[str]:
    """The names that are called somewhere: a class that has instances of its own is whole."""
    calls = [node.func for path in MODULES for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    names = {one.id if isinstance(one, ast.Name) else getattr(one, "attr", "") for one in calls}
    return frozenset(names | {node.name for _, node in classes() if "cls(" in ast.unparse(node)})


def is_interface(name: str) -> bool:
    """A protocol, or a class with abstract methods only: one implementation is enough for these."""
    node = next(node for _, node in classes() if node.name == name)
    if any("Protocol" in ast.unparse(base) for base in node.bases):
        return True
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    return bool(methods) and all("abstractmethod" in map(ast.unparse, one.decorator_list) for one in methods)


def test_no_method_is_abstract_by_an_assertion_error() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.body:
                last = node.body[-1]
                alone = len(node.body) == 1 + bool(ast.get_docstring(node))
                if alone and isinstance(last, ast.Raise) and "AssertionError" in ast.unparse(last):
                    found.append(f"{path}: {node.name}")
    assert found == []


# ---------------------------------------------------------------- packages


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports in functions and for type checkers count."""
    assert circles() == []


def circles() -> list[set[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []
    graph = {name: needed(path) for name, path in NAMES.items() if name not in ("shoal", "shoal.__main__")}

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = set()
            while name not in group:
                group.add(stack.pop())
            if len(group) > 1:
                found.append(group)

    for name in graph:
        if name not in number:
            visit(name)
    return found


def test_a_package_is_small_enough_to_look_through() -> None:
    sizes = Counter(path.rpartition("/")[0] for path in MODULES if not path.endswith("__init__.py"))
    assert {package: size for package, size in sizes.items() if size > MOST_MODULES} == {}


def public(package: str) -> list[str]:
    """The modules that a package's ``__init__`` opens to others."""
    for node in tree(NAMES[package]).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["PUBLIC"]:
            return list(ast.literal_eval(node.value))
    return []


def doors(importer: str, target: str) -> Iterator[tuple[str, str]]:
    """The packages that an import enters from outside, and which of their modules it names."""
    parts = target.split(".")
    for depth in range(2, len(parts)):
        package = ".".join(parts[:depth])
        if not f"{importer}.".startswith(f"{package}."):
            yield package, parts[depth]


@pytest.mark.parametrize("path", [path for path in MODULES if path not in ("shoal/__init__.py", "shoal/__main__.py")])
def test_a_module_uses_only_what_other_packages_open(path: str) -> None:
    entered = [door for target in sorted(needed(path)) for door in doors(name_of(path), target)]
    assert [f"{package}.{name}" for package, name in entered if name not in public(package)] == []


def test_no_package_opens_more_than_others_use() -> None:
    used = {door for name, path in NAMES.items() for target in needed(path) for door in doors(name, target)}
    benchmarks = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/*.py")]
    for path in (*benchmarks, "shoal/__init__.py", "shoal/__main__.py"):
        used |= {door for target in needed(path) for door in doors("", target)}
    opened = {(package, name) for package in NAMES for name in public(package)}
    assert opened - used == set()


# ---------------------------------------------------------------- prose


def docstrings(path: str) -> Iterator[ast.Expr]:
    for node in ast.walk(tree(path)):
        has_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if has_one and ast.get_docstring(node, clean=False) is not None and isinstance(node.body[0], ast.Expr):
            yield node.body[0]


def wrong_prose(path: str) -> list[str]:
    text = (ROOT / path).read_text()
    rows = text.splitlines()
    found = []
    for node in docstrings(path):
        if len(rows[node.lineno - 1].strip().strip('"').strip()) > FIRST_LINE:
            found.append(f"{path}:{node.lineno}: the first line has more than {FIRST_LINE} characters")
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            if len(rows[line - 1]) > COLUMNS:
                found.append(f"{path}:{line}: more than {COLUMNS} columns")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_prose = token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "# fmt:"))
        if is_prose and token.end[1] > COLUMNS:
            found.append(f"{path}:{token.start[0]}: a comment that ends after column {COLUMNS}")
    return found


OTHERS = [
    path.relative_to(ROOT).as_posix()
    for folder in ("benchmarks", "docs", "examples", "studies", "tests", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.mark.parametrize("path", [*MODULES, *OTHERS])
def test_prose_is_short_lines_and_docstrings_begin_with_a_short_sentence(path: str) -> None:
    assert wrong_prose(path) == []
