"""Every node that ships runs in some scenario of the simulator, not only as a stand-in.

A node is a class with ``handle(self, now, event)`` (``wire.effects.Node``). The package's source
is searched for them; ``RUNS`` says which classes run in a scenario, and a few seeds of it show
whether they do. Parts of a run that are not nodes but must run, too, are listed here, each with
the method that starts it.
"""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import shoal
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.evaluator import Evaluator
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_node import SchedulerNode
from shoal.nodes.server import Server
from shoal.nodes.trainer import Trainer
from shoal.nodes.worker import Worker
from shoal.simulation import SCENARIOS
from shoal.simulation.scenarios import scenario
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.strategies.gossip.controller import GossipController
from shoal.strategies.gossip.worker import GossipWorker
from shoal.strategies.parameter_server.algorithm import Async, Bounded, Sync
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.peer import PeerNode

PACKAGE = Path(shoal.__file__).parent
MODELS = ("simulation",)  # its nodes are made for the simulation
SEEDS = 60  # at most: a scenario ends as soon as all its classes have run
STARTED_BY: dict[type[Any], str] = {
    Trainer: "start",
    Evaluator: "start",
    Scheduler: "want",
    Sync: "run",
    Bounded: "run",
    Async: "run",
    BlockProximal: "run",
}

STORE = {Coordinator, DrainableNode, Server, Worker}
RUNS: dict[str, set[type[Any]]] = {
    "store": STORE,
    "moves": STORE,
    "training": {*STORE, Scheduler, Evaluator, SchedulerNode, Trainer, Async, BlockProximal, Bounded, Sync},
    "gossip": {GossipController, GossipWorker},
    "peers": {Mesh, PeerNode},
}


def nodes_in(source: str) -> Iterator[str]:
    """The names of classes with handle(self, now, event), without protocols."""
    for found in ast.walk(ast.parse(source)):
        if not isinstance(found, ast.ClassDef):
            continue
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in found.bases):
            continue
        for one in found.body:
            contract = isinstance(one, ast.FunctionDef) and [one.name, *(argument.arg for argument in one.args.args)]
            if contract == ["handle", "self", "now", "event"]:
                yield found.name


@functools.cache
def nodes() -> dict[type[Any], str]:
    """Every node of the package and other parts that must run, each with its method."""
    found: dict[type[Any], str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE)
        if where.parts[0] in MODELS:
            continue
        module = ".".join(["shoal", *where.with_suffix("").parts])
        for name in nodes_in(path.read_text(encoding="utf-8")):
            found[getattr(import_module(module), name)] = "handle"
    return {**found, **STARTED_BY}


@contextmanager
def recorded() -> Iterator[set[type[Any]]]:
    """Collects the classes that run in this thread meanwhile.

    Other threads may run clusters of other tests.
    """
    seen: set[type[Any]] = set()
    me = threading.get_ident()

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == me:
                seen.add(type(self))
            return real(self, *arguments, **named)

        return call

    with ExitStack() as undo:
        for cls, method in nodes().items():
            owner = next(one for one in cls.__mro__ if method in vars(one))
            # Wrap a method that two classes inherit only once.
            if not hasattr(vars(owner)[method], "__wrapped__"):
                undo.enter_context(mock.patch.object(owner, method, watched(vars(owner)[method])))
        yield seen


def test_the_package_has_the_nodes_that_everybody_knows() -> None:
    names = {one.__name__ for one in nodes()}
    assert names >= {
        "Coordinator",
        "DrainableNode",
        "GossipController",
        "GossipWorker",
        "PeerNode",
        "SchedulerNode",
        "Server",
        "Worker",
    }


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n    def handle(self, now: int, event: Event) -> list[Effect]: ...", ["A"]),
        ("class A:\n    def handle(self, now, message): ...", []),
        ("class A(Protocol):\n    def handle(self, now, event): ...", []),
        ("def f():\n    class A:\n        def handle(self, now, event): ...", ["A"]),
    ],
)
def test_a_node_is_known_by_its_contract(source: str, found: list[str]) -> None:
    assert list(nodes_in(source)) == found


def test_every_node_that_ships_is_in_some_scenario() -> None:
    simulated = set().union(*RUNS.values())
    missing = [one.__qualname__ for one in nodes() if one not in simulated]
    assert missing == [], "let a scenario of shoal/simulation run these, and name them in RUNS"


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.timeout(600)
def test_what_a_scenario_says_that_it_runs_does_run_in_it(name: str) -> None:
    found, seeds = scenario(name), 0
    with recorded() as seen:
        while not seen.issuperset(RUNS[name]) and seeds < SEEDS:
            found.simulate(seeds)
            seeds += 1
    print(f"\n{name}: {', '.join(sorted(one.__name__ for one in seen))} in {seeds} seeds")
    ships = {one for one in seen if one in nodes()}
    assert ships == RUNS[name], "the scenario's nodes and what its seeds run are not the same"
