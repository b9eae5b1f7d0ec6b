"""Each key is bound to its group, on servers of another host (S1-07, T6, T8).

A refused caller always learns the reason.

Every "host" is a folder of keys; all messages go over tcp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.data.datasets import load
from shoal.errors import Invalid, Refused
from shoal.events import Stopped
from shoal.inspect.evaluate import ModelEvaluator
from shoal.inspect.query import opened
from shoal.job import Job
from shoal.launch.processes import ProcessCluster
from shoal.security import keyring
from shoal.settings_tree import changed
from shoal.strategies.parameter_server.group_cluster import guest
from shoal.strategies.parameter_server.run import ServerRun
from tests.support.sandbox import soon

WITHIN = 60.0


class Site:
    """A cluster with keys, and the key folders of the hosts that join it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        keyring.make(place / "coordinator", "coordinator", "coordinator")
        self.cluster: Any = None

    def key(self, name: str, role: str, group: str = "") -> str:
        """Make a host whose key the coordinator knows, and return its key folder."""
        if not (self.place / name).exists():
            keyring.allow(self.place / "coordinator", keyring.make(self.place / name, name, role), group)
        return str(self.place / name)

    def join(self, key: str, group: str, role: Any = "client") -> shoal.KV:
        return shoal.connect(self.cluster.address, role, group=group, keys=key)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    with shoal.local(servers=2, processes=True, transport="tcp", keys=made.place / "coordinator") as cluster:
        assert isinstance(cluster, ProcessCluster)
        made.cluster = cluster
        yield made


def job_of(keys: str) -> Job:
    settings = {"data.rows": 2_000, "data.batch": 50, "strategy.name": "sync", "stop.epochs": 1e6, "workers": 2}
    return Job.of(changed({"data": "clicks"}, {**settings, "emulate.per_example": 2e-4, "launch.keys": keys}))


@pytest.mark.slow
def test_a_key_is_held_to_its_group_by_coordinator_and_servers(site: Site) -> None:
    ann, bob, eve = site.key("a", "client", "a"), site.key("hostb", "worker", "a"), site.key("eve", "client", "e")
    with site.cluster.client() as operator, site.join(ann, "a") as first, site.join(bob, "a", "worker") as second:
        operator.create("w", shoal.Dense(rows=8))
        first.create("w", shoal.Dense(rows=8))
        second.push("w", [1], [2.0]).result(WITHIN)  # same group, key of another host
        assert first.pull("w", [1]).result(WITHIN).tolist() == [2.0]
        assert (first.name.split("-")[0], second.name.split("-")[0]) == ("a/client", "a/hostb.worker")
        for key, group in ((eve, "a"), (eve, ""), (bob, ""), (bob, "hostb"), (ann, "e")):
            with pytest.raises(Refused, match="confined to group"):
                site.join(key, group)
        counts = site.cluster.look().counts  # as the coordinator counts them
        assert counts["impostor"] >= 3 and counts["not theirs to say"] >= 2
        with site.join(eve, "e") as other:
            for hostile in (lambda: other.push("a/w", [1], [1.0]), lambda: other.push("/w", [1], [1.0])):
                with pytest.raises(Invalid, match="may not push"):
                    hostile().result(WITHIN)
            for table in ("a/w", "/w"):
                with pytest.raises(Invalid, match="may not read"):
                    other.call(table, slice(None), "count").result(WITHIN)
            with pytest.raises(Invalid, match="in group 'e'"):
                other.drop("a/w")
        assert operator.pull("a/w", slice(None)).result(WITHIN).sum() == 2.0
        first.dissolve("a")
        operator.drop("w")


@pytest.mark.slow
def test_one_group_trains_another_judges_and_one_that_is_revoked_ends_with_the_reason(site: Site) -> None:
    trains, judges = site.key("b", "client", "b"), site.key("hostj", "client", "judges")
    rows = site.place / "rows.svm"
    rows.write_text("".join(f"{label} 1:1 7:0.5 {i + 9}:1\n" for i in range(50) for label in (-1, 1)))
    with pytest.raises(Invalid, match="a run of group 'b' needs the key of that name"):
        guest(job_of(judges), site.cluster.address, "b")
    events: list[Any] = []
    job, launcher = guest(job_of(trains), site.cluster.address, "b")
    with ServerRun(job, load(job.data, job.seed), events.append, launcher=launcher) as training:
        assert soon(lambda: training.course.done > 20, WITHIN)
        with site.cluster.client() as operator:
            with pytest.raises(Invalid, match="may not read"):
                look(site, rows, job, judges)
            operator.allow("judges", reads=["b"])
            first, before = look(site, rows, job, judges), training.course.done
            assert soon(lambda: training.course.done > before + 20, WITHIN)
            assert look(site, rows, job, judges) != first
            # As a member of the group.
            with contextlib.closing(opened(training._cluster.address, keys=trains)) as asked:
                assert np.isfinite(asked.ask("count"))
            keyring.revoke(site.place / "coordinator", "b")
            outcome = training.wait(WITHIN)
            assert outcome is not None and outcome.failed
            (stopped,) = [event for event in events if isinstance(event, Stopped)]
            assert "group 'b' cannot take part: the key" in stopped.why and "was revoked" in stopped.why
            assert soon(lambda: not [name for name in operator.members if name.startswith("b/")], WITHIN)
            # Its tables remain: its key was revoked, so it could not remove them itself.
            operator.dissolve("b")
            assert not operator.tables()


def look(site: Site, rows: Path, job: Job, keys: str) -> float:
    with ModelEvaluator(site.cluster.address, str(rows), job, "b/weights", "judges", keys=keys) as judging:
        return judging.look().loss
