"""What every strategy says about itself, and how strategies are found by their names.

A strategy is a struct of settings: a job file decodes straight into it. What the rest of shoal must
know of it is here, as a trait (a class attribute) or a method that a strategy may override; nothing
else asks which strategy it is. A run begins by ``open_run`` of the module that ``runs`` names,
which gets a ``RunStart`` (``training.run``).

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
from shoal.decoding import look_up
from shoal.errors import Invalid

if TYPE_CHECKING:
    from shoal.job import Job
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
    """A way to train in parallel. Its fields are the settings that a job may give."""

    runs: ClassVar[str]  # the module whose ``open_run`` begins a run
    observer: ClassVar[str] = ""  # the module whose ``answers`` finds such a run at an address
    on_servers: ClassVar[bool] = False  # servers hold the model, and a scheduler deals the slots
    has_workers: ClassVar[bool] = True  # besides the process that was called
    has_links: ClassVar[bool] = False  # workers talk to each other: emulate.link delays that
    mixes: ClassVar[bool] = False  # weights change beside the update rule
    solves: ClassVar[bool] = False  # an objective, to its end: stop.objective, stop.violation
    may_use_mpi: ClassVar[bool] = False  # ranks of mpirun can do it
    can_be_watched: ClassVar[bool] = False  # `shoal status` can ask a node

    if TYPE_CHECKING:

        @property
        def combine(self) -> Literal["mean", "sum"]:
            """Of the examples in a slot; a setting of most strategies."""

    @property
    def name(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def in_steps(self) -> bool:
        """Several slots make one update."""
        return False

    @classmethod
    def defaults(cls, tree: dict[str, Any]) -> None:
        """Fill in other settings of a job that suit it, where none are given."""

    def has_servers(self, job: Job) -> bool:
        return self.on_servers

    def check(self, job: Job) -> None:
        """Refuse settings of the job that do not go with it."""
        if job.update.rule == "block_proximal":
            raise Invalid(
                f"update.rule={job.update.rule!r} is for strategy 'block-proximal': take that, or another rule"
            )
        if job.stop.is_solved_by_rule:
            raise Invalid(
                "stop.objective and stop.violation are for strategy 'block-proximal', which solves an objective: "
                "take stop.target_loss or stop.patience"
            )

    def check_here(self, job: Job) -> None:
        """Refuse what this machine cannot do, before anything is started."""

    def check_model(self, learner: Learner) -> None:
        """Refuse a model that does not go with it."""

    def slots(self, rows: int, batch: int, seed: int) -> SlotOrder:
        """The slots of an epoch over so many rows."""
        return Slots(rows, batch, seed)

    def evaluates(self, job: Job, learner: Learner) -> Learner:
        """The learner that evaluates its models."""
        return learner


def register(kind: Kind) -> Kind:
    """Make a strategy known by its tag."""
    name = str(kind.__struct_config__.tag)
    if _known.get(name, kind) is not kind and _known[name].__qualname__ != kind.__qualname__:
        raise Invalid(f"a strategy {name!r} is known already: give yours another tag")
    look_up(kind)
    _known[name] = kind
    return kind


def strategies() -> dict[str, type[Strategy]]:
    """All known strategies by name, shoal's own first."""
    for package in dict.fromkeys(_BUILT_IN.values()):
        importlib.import_module(f"shoal.strategies.{package}")
    return {name: _known[name] for name in dict.fromkeys([*_BUILT_IN, *_known])}
