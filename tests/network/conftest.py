"""These tests get hosts of their own, or are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hosts import Hosts, missing
from tests.support.multi_host import SERVERS, WORKERS, Site


def needs_hosts() -> None:
    """Skips the test, with the reason, where there can be no such hosts."""
    if why := missing():
        pytest.skip(why)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    needs_hosts()
    with Hosts(1 + SERVERS + WORKERS) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def shared_site(hosts: Hosts) -> Iterator[Site]:
    with Site(hosts) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """Yields the same cluster to every test.

    After each test it is healed, and has all its servers.
    """
    yield shared_site
    shared_site.hosts.heal()
    for name in shared_site.servers:
        if shared_site.processes[name].poll() is not None:
            shared_site.post(name)
    shared_site.wait_for_servers()
