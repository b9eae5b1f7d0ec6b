"""All tests have these fixtures and hooks."""

from __future__ import annotations

import fcntl
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.isolation import Isolation, reset_inherited
from tests.harness.rewriting import share_rewriting
from tests.harness.tiers import Tiers, is_whole

if TYPE_CHECKING:
    from tests.support.sandbox import Den
    from tests.support.warm_forkserver import Warm

pytest.register_assert_rewrite("shoal.testing.conformance", "shoal.testing.watch")
reset_inherited()  # before any process is started, those of xdist included


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Isolation(), "isolation")
    config.pluginmanager.register(Tiers(), "tiers")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and worker["workerid"][2:].isdigit() and is_whole(session.config):
        share_rewriting(session.config, int(worker["workerid"][2:]), worker["workercount"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promises", action="store_true", help="print which promise has how many tests in which tier")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gives this module a cache of its own, and yields where packed sets lie in it."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE", str(folder))
        yield folder / "data"


# In the order of their imports; one process compiles all that is in one tuple.
KERNELS = (
    ("shoal.store.table.kernels", "shoal.filters.kernels"),
    (
        "shoal.data.kernels",
        "shoal.data.synthetic_kernels",
        "shoal.models.kernels",
        "shoal.models.column_kernels",
        "shoal.strategies.hogwild.kernels",
    ),
)


@pytest.fixture(autouse=True, scope="session")
def kernels_are_compiled_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiles kernels once: each of several test processes begins with another part."""
    number = getattr(request.config, "workerinput", {}).get("workerid", "").removeprefix("gw")
    if not number.isdigit():
        return  # one process alone compiles what it needs
    first = int(number) % len(KERNELS)
    for part in (*range(first, len(KERNELS)), *range(first)):
        with open(tmp_path_factory.getbasetemp().parent / f"kernels-{part}", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for module in KERNELS[part]:
                importlib.import_module(module)


AFRESH = ("test_forkserver.py", "test_endings.py", "test_launch.py")  # these test the start itself


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    from tests.support.warm_forkserver import Warm

    with Warm() as one:
        yield one


@pytest.fixture(autouse=True, scope="module")
def forkservers_have_their_imports(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shares one set of imports among all clusters of this process.

    Programs under test have their own.
    """
    from shoal.launch import process_pool
    from tests.support.warm_forkserver import Warm

    if not Warm.can or request.path.name in AFRESH or "unit" in request.path.parts:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        # It is started with the first cluster.
        patch.setattr(process_pool, "start_forkserver", lambda: request.getfixturevalue("warm").start())
        yield


@pytest.fixture
def mpi_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a folder for the shared memory of ranks.

    Ranks that are killed leave it behind, 16 MB each, which would else be in /dev/shm.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-test-mpi-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", folder)
        yield Path(folder)


@pytest.fixture
def den() -> Iterator[Den]:
    from tests.support.sandbox import Den

    with Den() as one:
        yield one
