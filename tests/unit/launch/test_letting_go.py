"""A removed server is not restarted, whatever its process and its supervisor do meanwhile.

The cluster of these tests has no processes: the tests tell it what they do.
"""

from __future__ import annotations

import pytest

from shoal.errors import ClusterError
from shoal.inspect import drain
from shoal.job import LaunchSettings
from shoal.launch.process_pool import ChildState
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile

NAME = "server-1"


class Supervising:
    """A supervisor that records why processes ended."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def ended(self, name: str, why: str) -> None:
        self.told.append(why)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ProcessCluster:
    made = ProcessCluster(2, LaunchSettings(), JournalFile(None), restart=True)
    made._servers.add(NAME)
    made._children.states[NAME] = ChildState(pid=4711, running=True)
    monkeypatch.setattr(made, "supervisor", Supervising())
    monkeypatch.setattr(made, "_fork", lambda *orders: pytest.fail("it was started again"))
    return made


def told(cluster: ProcessCluster) -> list[str]:
    assert isinstance(cluster.supervisor, Supervising)
    return cluster.supervisor.told


def ends(cluster: ProcessCluster) -> None:
    cluster._children.states[NAME].ended = "it left"
    cluster._child_ended(NAME, "it left")


def test_a_server_that_leaves_to_be_started_again_is_not_if_it_is_let_go_meanwhile(
    cluster: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "let_go", lambda looking, name: ends(cluster))
    cluster.remove_server(NAME)
    cluster._start_again(NAME)  # a restart that had begun before
    assert told(cluster) == [] and not cluster._servers and not cluster._removing


@pytest.mark.parametrize("begun", [False, True])
def test_a_server_that_could_not_be_let_go_is_started_again_if_it_ended_meanwhile(
    cluster: ProcessCluster, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    def let_go(looking: object, name: str) -> None:
        (cluster._start_again(name) if begun else ends(cluster))
        raise ClusterError("the coordinator does not answer")

    monkeypatch.setattr(drain, "let_go", let_go)
    with pytest.raises(ClusterError, match="does not answer"):
        cluster.remove_server(NAME)
    assert told(cluster) == ["it was to be restarted" if begun else "it left"] and not cluster._removing


def test_a_server_that_ends_while_nobody_lets_it_go_is_started_again(cluster: ProcessCluster) -> None:
    ends(cluster)
    assert told(cluster) == ["it left"]
