"""Checks for users' update rules, filters and queries, which are registered by name.

Settings are finite numbers, with names that a named tuple can have; the error about an unknown name
suggests a near one; a name that other code has registered is refused.
"""

from __future__ import annotations

import inspect
import keyword
import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from shoal.errors import Invalid

_named_tuple: Any = namedtuple  # type checkers want its fields written out


def check_number(what: str, value: object) -> None:
    try:
        finite = not isinstance(value, bool | str) and math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        finite = False
    if not finite:
        raise Invalid(f"setting {what}: needs a finite number")


def check_setting(name: str) -> None:
    if name.startswith("_") or not name.isidentifier() or keyword.iskeyword(name):
        raise Invalid(f"setting {name!r}: needs a name without leading underscore that is no Python keyword")


def merged_settings(
    what: str, defaults: Mapping[str, float], given: Mapping[str, Any], check: Callable[[str, Any], None]
) -> Any:
    """A named tuple of the defaults and what was given, which is checked."""
    for name, value in given.items():
        if name not in defaults:
            raise Invalid(f"{what} has no setting {name!r}{instead(name, defaults)}")
        check(name, value)
    return _named_tuple("Settings", tuple(defaults))(*map(float, {**defaults, **given}.values()))


def checked_name(
    what: str, function: Any, needs: str, own: Iterable[str], old: Mapping[str, Any], numba: bool = False
) -> str:
    """The name of a user's function, if it can be registered; ``needs`` are its parameters."""
    name, python = getattr(function, "__name__", ""), getattr(function, "py_func", function) if numba else function
    if not name.isidentifier() or not inspect.isfunction(python):
        article = "an" if what[0] in "aeiou" else "a"
        raise Invalid(f"{function!r} cannot be {article} {what}: a function made by `def` is needed")
    parameters = inspect.signature(python).parameters.values()
    if len(parameters) != len(needs.split(",")) or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise Invalid(f"{what} {name!r} takes ({', '.join(map(str, parameters))}): needs ({needs})")
    if name in own:
        raise Invalid(f"{what} {name!r} is one of shoal's own: give your function another name")
    check_taken(what, name, old[name].function if name in old else None, function)
    return str(name)


def check_taken(what: str, name: str, old: Any, new: Any) -> None:
    """Refuse a name that other code has registered.

    The same function or class, edited, has the same module (a notebook, a reload) or the same file
    (run as a script, then imported).
    """
    if old is not None and old.__module__ != new.__module__ and _file(old) != _file(new):
        raise Invalid(f"{what} {name!r} is already registered by {_file(old)}: give one of them another name")


def near(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f": did you mean {found[0]!r}?" if found else ""


def instead(name: str, settings: Iterable[str]) -> str:
    """The nearest setting, or all settings."""
    settings = list(settings)
    return near(name, settings) or (f" (settings: {', '.join(settings)})" if settings else " (it has none)")


def _file(one: Any) -> str:
    try:
        # py_func: the function that numba compiled
        return str(inspect.getfile(getattr(one, "py_func", one)))
    except (TypeError, OSError):
        return str(one.__module__)
