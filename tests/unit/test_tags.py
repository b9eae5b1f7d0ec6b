"""Records on the wire, in a journal and in events.jsonl have tags of their own.

So renaming a class changes no byte. ``tags.txt`` has the tag and the fields of every record that
leaves a process. Change a line of it only together with the code that reads old files; a new kind
of record adds a line.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

import shoal

KEPT = Path(__file__).with_name("tags.txt")


def structs(kind: type[msgspec.Struct] = msgspec.Struct) -> Iterator[type[msgspec.Struct]]:
    for one in kind.__subclasses__():
        yield one
        yield from structs(one)


def described() -> list[str]:
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    lines = set()
    for kind in structs():
        config = kind.__struct_config__
        if config.tag == kind.__name__:
            continue  # a base class, which is never written
        if kind.__module__.startswith("shoal.") and config.tag is not None:
            layout = "array" if config.array_like else f"object, {config.tag_field}"
            lines.add(f"{config.tag} ({layout}): {' '.join(kind.__struct_encode_fields__)}".rstrip())
    return sorted(lines)


def test_no_tag_and_no_field_has_changed() -> None:
    # In a new process, because it imports every module of the package.
    found = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == KEPT.read_text().splitlines()


def test_no_tag_is_made_of_the_name_of_a_class() -> None:
    sources = [path.read_text() for path in Path(shoal.__path__[0]).rglob("*.py")]
    assert not [source for source in sources if "tag=str." in source or "tag=True" in source]


if __name__ == "__main__":
    print("\n".join(described()))
