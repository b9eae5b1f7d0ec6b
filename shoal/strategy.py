"""The base class of strategies, and their registry by name.

A strategy is a struct of settings: a job file decodes straight into it. The rest of shoal knows it
by the traits (class attributes) and methods here, which a strategy may override, and never asks
which strategy it is. A run begins with ``open_run`` of the module that ``runs`` names, which gets
a ``RunStart`` (``training.run``).

    @register
    class Mine(Strategy, frozen=True, tag="mine", kw_only=True):
        every: int = 4
        runs: ClassVar[str] = "my_module"
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import msgspec

from shoal.data.slots import SlotOrder, Slots
from shoal.decoding import resolve_types
from shoal.errors import Invalid

if TYPE_CHECKING:
    from shoal.models.learner import Learner

Kind = TypeVar("Kind", bound=type["Strategy"])

_BUILT_IN = {  # and the package whose import registers it
    "sync": "parameter_server",
    "bounded": "parameter_server",
    "async": "parameter_server",
    "serial": "serial",
    "averaging": "averaging",
    "allreduce": "averaging",
    "hogwild": "hogwild",
    "block-proximal": "block_proximal",
    "gossip": "gossip",
    "peer-to-peer": "peers",
}
_known: dict[str, type[Strategy]] = {}


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", kw_only=True):
    """A way to train in parallel. Its fields are the settings that a job may give.

    The ``job`` of the methods is a ``shoal.Job``, whose module imports this one.
    """

    runs: ClassVar[str]  # the module with ``open_run``
    observer: ClassVar[str] = ""  # the module whose ``answers`` finds a run by its address
    on_servers: ClassVar[bool] = False  # servers hold the model, and a scheduler deals the slots
    has_workers: ClassVar[bool] = True  # besides the calling process
    has_links: ClassVar[bool] = False  # workers exchange messages: emulate.link delays them
    mixes: ClassVar[bool] = False  # weights also change outside the update rule
    solves: ClassVar[bool] = False  # it minimises an objective: stop.objective, stop.violation
    may_use_mpi: ClassVar[bool] = False  # it can run as ranks of mpirun
    can_be_watched: ClassVar[bool] = False  # `shoal status` can query a node

    if TYPE_CHECKING:

        @property
        def combine(self) -> Literal["mean", "sum"]:
            """How the gradients of a slot's examples are combined; a setting of most strategies."""

    @property
    def name(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def in_steps(self) -> bool:
        """Whether several slots make one update."""
        return False

    @classmethod
    def defaults(cls, tree: dict[str, Any]) -> None:
        """Fill in defaults for other settings of a job."""

    def has_servers(self, job: Any) -> bool:
        return self.on_servers

    def check(self, job: Any) -> None:
        """Refuse settings of the job that it does not support."""
        if job.update.rule == "block_proximal":
            raise Invalid(f"update.rule={job.update.rule!r} is for strategy 'block-proximal': take it, or another")
        if job.stop.is_solved_by_rule:
            raise Invalid(
                "stop.objective and stop.violation are for strategy 'block-proximal', which solves an objective: "
                "take stop.target_loss or stop.patience"
            )

    def check_here(self, job: Any) -> None:
        """Refuse what this machine cannot do, before the run starts."""

    def check_model(self, learner: Learner) -> None:
        """Refuse a model that it does not support."""

    def slots(self, rows: int, batch: int, seed: int) -> SlotOrder:
        """The slots of an epoch over so many rows."""
        return Slots(rows, batch, seed)

    def evaluates(self, job: Any, learner: Learner) -> Learner:
        """The learner that evaluates its models."""
        return learner


def register(kind: Kind) -> Kind:
    name = str(kind.__struct_config__.tag)
    if _known.get(name, kind) is not kind and _known[name].__qualname__ != kind.__qualname__:
        raise Invalid(f"a strategy {name!r} is known already: give yours another tag")
    resolve_types(kind)
    _known[name] = kind
    return kind


def strategies() -> dict[str, type[Strategy]]:
    """All known strategies by name, shoal's own first."""
    for package in dict.fromkeys(_BUILT_IN.values()):
        importlib.import_module(f"shoal.strategies.{package}")
    return {name: _known[name] for name in dict.fromkeys([*_BUILT_IN, *_known])}
