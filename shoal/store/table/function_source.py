"""A function as text: its source and that of everything it refers to, as one module.

Modules become imports, numbers become literals, other plain functions are written out in turn.
Whatever cannot be written down is refused by name: a kernel must not depend on what its text does
not show.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import symtable
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from shoal.errors import Invalid

JIT = '@_shoal_njit(error_model="numpy")\n'
REFUSED = (ast.Raise, ast.Assert, ast.Try, ast.With, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Yield)


@dataclass
class FunctionSource:
    """The source of a function and of all that it refers to, as lines of one module."""

    rule: str
    _lines: list[str] = field(default_factory=list)
    _known: dict[str, object] = field(default_factory=dict)

    def text(self) -> str:
        return "\n".join(self._lines)

    def add(self, function: Any) -> bool:
        """Write out a function and what it needs; False if it has no source."""
        if self._is_known(function.__name__, function):
            return True
        node = _tree(function)
        if node is None:
            return False
        self._look_through(node)
        plain = ast.unparse(_stripped(node, function))
        for name in _free_names(plain):
            if not self._refer(name, function):
                return False
        self._lines.append(f"\n\n{JIT}{plain}")
        return True

    def _refer(self, name: str, function: FunctionType) -> bool:
        found = _lookup(name, function)
        match found:
            case _Builtin():
                return True
            case ModuleType() if found in (math, np):
                line = f"import {found.__name__} as {name}"
            case FunctionType() if not self.add(found):
                return False
            case FunctionType() if found.__name__ == name:
                return True
            case FunctionType():
                line = f"{name} = {found.__name__}"
            case _ if (home := _home(found)) is not None:
                line = f"from {home} import {getattr(found, '__name__', '')} as {name}"
            case _ if type(found) in (bool, int, float, str, np.float64):
                line, found = f"{name} = {_literal(found)}", _literal(found)
            case _:
                self._refuse(f"refers to {name!r}, which is {found!r}: needs math, numpy, a number, text or function")
        if not self._is_known(name, found):
            self._lines.append(line)
        return True

    def _is_known(self, name: str, found: object) -> bool:
        if name.startswith("_shoal_"):
            self._refuse(f"refers to {name!r}: names that begin with _shoal_ are taken")
        if name in self._known:
            if self._known[name] is not found and self._known[name] != found:
                self._refuse(f"refers to two different things called {name!r}: give one another name")
            return True
        self._known[name] = found
        return False

    def _look_through(self, function: ast.FunctionDef) -> None:
        for node in ast.walk(function):
            if isinstance(node, REFUSED):
                word = type(node).__name__.lower()
                self._refuse(f"has `{word}` in {function.name}: an update cannot stop half way or reach outside")
            if isinstance(node, ast.Attribute) and node.attr == "random":
                self._refuse(f"uses random numbers in {function.name}: copies of a table would differ")

    def _refuse(self, what: str) -> Any:
        raise Invalid(f"update {self.rule!r} {what}")


class _Builtin:
    """A name that Python itself defines."""


def _lookup(name: str, function: FunctionType) -> object:
    code, cells = function.__code__, function.__closure__ or ()
    if name in code.co_freevars:
        return cells[code.co_freevars.index(name)].cell_contents
    if name in function.__globals__:
        return function.__globals__[name]
    if hasattr(builtins, name):
        return _Builtin()
    raise Invalid(f"{function.__name__} refers to {name!r}, which is nowhere defined")


def _home(found: object) -> str | None:
    """math or numpy, if this is one of their functions."""
    name = getattr(found, "__name__", "")
    return next((home.__name__ for home in (math, np) if name and getattr(home, name, None) is found), None)


def _literal(value: Any) -> str:
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")'
    return repr(value)


def _free_names(text: str) -> Iterator[str]:
    """Names that a function takes from outside, in alphabetical order."""
    tables = list(symtable.symtable(text, "<update>", "exec").get_children())
    names: list[str] = []
    for table in tables:
        names += [symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()]
        tables += table.get_children()
    yield from sorted(dict.fromkeys(names))


def _stripped(node: ast.FunctionDef, function: FunctionType) -> ast.FunctionDef:
    """Without decorators and annotations; with the defaults that the function really has."""
    node = deepcopy(node)
    arguments = node.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    given, by_name = function.__defaults__ or (), function.__kwdefaults__ or {}
    if any(type(value) not in (bool, int, float, str) for value in [*given, *by_name.values()]):
        raise Invalid(f"{node.name}: only plain numbers and strings can be defaults of arguments")
    arguments.defaults = [ast.parse(_literal(value), mode="eval").body for value in given]
    arguments.kw_defaults = [
        ast.parse(_literal(by_name[one.arg]), mode="eval").body if one.arg in by_name else None
        for one in arguments.kwonlyargs
    ]
    node.decorator_list, node.returns = [], None
    return node


@lru_cache(maxsize=256)
def _tree(function: FunctionType) -> ast.FunctionDef | None:
    """The source of exactly this function; None if there is none, or the file has changed."""
    code = function.__code__
    try:
        text = "".join(inspect.findsource(code)[0])
        tree, made = ast.parse(text), compile(text, "<update>", "exec", dont_inherit=True)
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    # A file may have been edited since it was imported: compile it and compare with what runs.
    if not any(_shape(one) == _shape(code) for one in _codes(made)):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _shape(code: CodeType) -> tuple[object, ...]:
    constants = tuple(_shape(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts)
    return code.co_firstlineno, code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants
