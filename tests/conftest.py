"""For all tests: asserts of the suite in shoal.testing are shown as those of a test are; and what many of them need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from shoal.testing.den import Den

pytest.register_assert_rewrite("shoal.testing.conformance", "shoal.testing.watch")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own; where packed sets lie in it."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE", str(folder))
        yield folder / "data"


@pytest.fixture
def den() -> Iterator[Den]:
    from shoal.testing.den import Den

    with Den() as one:
        yield one
