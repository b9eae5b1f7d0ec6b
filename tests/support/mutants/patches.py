"""Collects broken variants of the classes that ship, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock


class Mutants(dict[str, Callable[[], AbstractContextManager[Any]]]):
    """Broken variants of the classes that ship, by name. A checker that misses one is blind.

    A mutant replaces a method while its ``with`` block lasts. A missing method is an error, so
    that no mutant silently becomes the real class when a method is renamed.
    """

    def add(self, make: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
        """Decorates a function that returns a patch."""
        self[make.__name__.replace("_", " ")] = make
        return make

    def replacing(self, owner: Any, name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Decorates a function that gets one attribute of ``owner`` and returns its replacement."""

        def decorate(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
            @functools.wraps(make)
            def patch() -> AbstractContextManager[Any]:
                return mock.patch.object(owner, name, make(getattr(owner, name)))

            self.add(patch)
            return make

        return decorate
