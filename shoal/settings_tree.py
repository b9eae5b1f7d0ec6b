"""Trees of settings before they become a job: change, parse and write them as TOML."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import Invalid

# the setting that names a table
_NAMED_BY = {"data": "source", "model": "net", "strategy": "name", "update": "rule"}
_LINEAR = ("logistic", "hinge", "squared")  # models named by their loss


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with the settings named "a.b" replaced."""
    tree: dict[str, Any] = {name: _table(name, value) for name, value in settings.items()}
    names_first = sorted(changes.items(), key=lambda one: one[0] not in ("strategy", "strategy.name"))
    for dotted, value in names_first:  # other settings of a strategy are for the named one
        first, *rest = str(dotted).split(".")
        if not rest:
            new, keep = _table(first, value), tree.get(first)
            if not isinstance(keep, dict) or first not in _NAMED_BY or _is_another(first, keep, new):
                keep = {}
            tree[first] = {**keep, **new} if isinstance(new, dict) else new
            continue
        inner = tree.setdefault(first, {})
        for name in rest[:-1]:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else {}
        if not isinstance(inner, dict):
            raise Invalid(f"{dotted}: {first!r} is one value and has no settings of its own")
        if _is_another(first, inner, {rest[-1]: value}):
            inner.clear()
        inner[rest[-1]] = value
    return tree


def _is_another(table: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether this names another strategy or kind of model, which starts with its defaults."""
    if table == "model" and ("net" in after or after.get("loss") in _LINEAR):
        return ("net" in after) != ("net" in before)
    return table == "strategy" and "name" in after and after["name"] != before.get("name", "async")


def settings_of(changes: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise Invalid(f"{change!r}: write it as a.b=c")
        found[name.strip()] = value_of(value.strip())
    return found


def value_of(text: str) -> Any:
    """The c of a.b=c: a TOML number, bool or list; None for "none"; otherwise a string."""
    if text.lower() in ("none", "null"):
        return None
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # no setting is a date
    return value if isinstance(value, bool | int | float | str | list | dict) else text


def _table(name: str, value: Any) -> Any:
    by = _NAMED_BY.get(name)
    if by is None or isinstance(value, Mapping):
        return dict(value) if isinstance(value, Mapping) else value
    return {"loss" if name == "model" and value in _LINEAR else by: value}


def beside(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Find the files of a job in the current folder, and then beside the job."""
    found = dict(tree)
    named = (("data", ("source", "test")), ("model", ("net", "loss", "metric", "start")), ("strategy", ("edges",)))
    for table, names in named:
        settings = tree.get(table)
        if isinstance(settings, dict):
            found[table] = settings | {name: _beside(settings[name], folder) for name in names if name in settings}
    return found


def _beside(given: Any, folder: Path) -> Any:
    if not isinstance(given, str) or not given:
        return given
    path, colon, name = given.rpartition(":") if ".py:" in given else (given, "", "")
    if Path(path).exists() or not (folder / path).exists():
        return given
    return f"{folder / path}{colon}{name}"


def toml_lines(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if value is None:
            yield f"# {name} = (not set)\n"
        elif not isinstance(value, Mapping):
            yield f"{name} = {_literal(value)}\n"
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield f"\n[{prefix}{name}]\n"
            yield from toml_lines(value, f"{prefix}{name}.")


def _literal(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float() if math.isinf(value) or math.isnan(value):
            return str(value)
        case int() | float():
            return repr(value)
        case Mapping():
            return f"{{{', '.join(f'{name} = {_literal(one)}' for name, one in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_literal, value))}]"
    # otherwise JSON strings are TOML strings
    return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")
