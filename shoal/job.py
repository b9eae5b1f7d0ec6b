"""The job: a full description of a run, its data, model, strategy, nodes and stop rules.

    data = "rcv1"                     workers = 4
    model = "logistic"                servers = 2
    strategy = "bounded"              seed = 7

    [update]                          [stop]
    rule = "ftrl"                     epochs = 10
    l1 = 1e-5                         patience = 3

A TOML file decodes straight into the settings objects. Where one setting names a table, the name
alone is enough, as above. ``--set a.b=c`` and ``shoal.train(settings={"a.b": c})`` change one
setting. Unknown settings are refused, with the nearest known name.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from shoal import limits, registry
from shoal.cluster.move_settings import MoveSettings
from shoal.data.datasets import DataSource
from shoal.data.slots import SlotOrder
from shoal.decoding import resolve_types
from shoal.emulation import Emulation
from shoal.errors import Invalid
from shoal.models.linear import Linear
from shoal.models.torch_module import Module
from shoal.schedule.stop_rules import StopRules
from shoal.settings_tree import beside, changed, toml_lines
from shoal.store.client.filtering import check_named
from shoal.store.table.update import UpdateSettings as UpdateSettings
from shoal.strategy import Strategy, strategies
from shoal.timing import Timing
from shoal.user_code import import_modules

MODELS = {"linear": Linear, "torch": Module}
MAY_CHANGE = (  # when a run is resumed
    "workers", "servers", "copies", "stop", "evaluate", "checkpoint", "launch", "handles", "emulate", "moves", "timing", "trace", "verbosity",
)  # fmt: skip
_KINDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "null": "none",
    "array": 'a list, such as [0, 1] or ["mine"]', "object": "its settings one by one, by their names",
}  # fmt: skip


class Evaluate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the model is evaluated on held-out rows; always at the start and at the end."""

    every: float = 1.0  # epochs; inf: only at the start and the end

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise Invalid(f"evaluate.every={self.every}: needs a number of epochs above 0")


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often checkpoints are written, and how many are kept."""

    every: float = 60.0  # seconds; inf: never
    keep: int = 3  # besides the best

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise Invalid(f"checkpoint.every={self.every}: needs a number of seconds above 0, or inf for never")
        if self.keep < 1:
            raise Invalid(f"checkpoint.keep={self.keep}: needs 1 or more")


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many time spans each node reports."""

    spans: int = 200  # per node and second; 0: only sums

    def __post_init__(self) -> None:
        if not 0 <= self.spans <= limits.SPANS:
            raise Invalid(f"trace.spans={self.spans}: needs 0 to {limits.SPANS}")


class LaunchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the nodes run."""

    how: Literal["processes", "threads", "mpi"] = "processes"  # mpi: by mpirun
    transport: Literal["ipc", "tcp"] = "ipc"
    modules: list[str] = []  # with your own updates and queries; every server imports them
    cache_mb: int | None = None  # a worker's cache of rows; by default a share of free memory
    listen: str = ""  # address or interface for nodes of other hosts; empty: none
    advertise: str = ""  # the address that they use, if another: tcp://HOST or tcp://HOST:PORT
    keys: str = ""  # folder of this host's keys; needed to listen for other hosts, ...
    insecure: bool = False  # ... unless this is set
    checksums: bool = True  # of unencrypted arrays between processes: damaged ones are sent again

    def __post_init__(self) -> None:
        if self.cache_mb is not None and self.cache_mb < 0:
            raise Invalid(f"launch.cache_mb={self.cache_mb}: needs 0 or more, or leave it out")


if TYPE_CHECKING:
    Chosen = Strategy
else:
    Chosen = Any  # any registered strategy: ``Job.of`` finds it by name


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a run."""

    data: DataSource = DataSource()
    model: Linear | Module = Linear()
    strategy: Chosen = msgspec.field(default_factory=lambda: strategies()["async"]())
    update: UpdateSettings = UpdateSettings()
    stop: StopRules = StopRules()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    launch: LaunchSettings = LaunchSettings()
    emulate: Emulation = Emulation()
    moves: MoveSettings = MoveSettings()
    timing: Timing = Timing()
    trace: Trace = Trace()
    filters: list[str | dict[str, str | float]] = []  # ["int8", {name = "zstd", level = 3}]
    handles: bool = True  # repeated key lists are sent once, then named by a number
    workers: int = 2
    servers: int = 1
    copies: int = 1  # servers that hold each segment
    seed: int = 0
    verbosity: int = 1  # 0: errors; 1: progress; 2: also joins, checkpoints, time spent; 3: all

    def __post_init__(self) -> None:
        for name in ("workers", "servers"):
            value = getattr(self, name)
            if not 1 <= value <= limits.MEMBERS // 2:
                raise Invalid(f"{name}={value}: needs 1 to {limits.MEMBERS // 2}")
        if self.copies is True or not 1 <= self.copies <= min(limits.COPIES, self.servers):
            raise Invalid(
                f"copies={self.copies}: needs 1 to {limits.COPIES}, and no more than there are servers "
                f"(servers={self.servers})"
            )
        if not 0 <= self.seed < 1 << 63:
            raise Invalid(f"seed={self.seed}: needs 0 to 2^63 - 1")
        if not 0 <= self.verbosity <= 3:
            raise Invalid(f"verbosity={self.verbosity}: needs 0 (errors only) to 3 (every event)")
        rare = [name for name in ("admit", "evict") if getattr(self.strategy, name, False)]
        if rare and not isinstance(self.model, Linear):
            raise Invalid(
                f"strategy.{rare[0]}={getattr(self.strategy, rare[0])!r} is for linear models, whose weights have keys: a module has "
                f"all its parameters from the start; leave it out"
            )
        processes = self.launch.how == "processes"
        self.emulate.check(self.workers if self.has_workers else 1, self.strategy.on_servers, processes)
        if self.emulate.link and not self.strategy.has_links:
            raise Invalid(
                f"emulate.link={self.emulate.link:g} is for workers that talk to each other (gossip, peer-to-peer), and strategy "
                f"{self.strategy.name!r} has none: leave it out"
            )
        self.update.check(self.launch.modules, self.strategy.on_servers)
        if self.filters and not self.strategy.on_servers:
            raise Invalid(
                f"filters={self.filters}: strategy {self.strategy.name!r} pushes no gradients to servers: leave filters out, or "
                f"choose sync, bounded or async"
            )
        wire = self.model.wire if isinstance(self.model, Module) else "float32"
        check_named(self.filters, self.update.update(), wire, bool(self.launch.modules))
        self.strategy.check(self)
        try:
            self.toml()
        except UnicodeEncodeError as error:
            raise Invalid(f"{error.object!a} is not UTF-8: rename it, or choose a UTF-8 locale") from None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Job:
        """A job from nested settings, as in a TOML file."""
        tree = changed(settings, {})
        if isinstance(tree.get("strategy"), dict):
            tree["strategy"].setdefault("name", "async")
        if isinstance(named := tree.get("filters"), str):  # --set filters=int8,delta
            tree["filters"] = [one.strip() for one in named.split(",") if one.strip()]
        chosen = tree["strategy"].get("name") if isinstance(tree.get("strategy"), dict) else None
        if isinstance(chosen, str) and chosen not in strategies() and isinstance(tree.get("launch"), dict):
            modules = tree["launch"].get("modules", [])  # one of them may register it
            if isinstance(modules, list) and all(isinstance(one, str) for one in modules):
                import_modules(modules)
        if isinstance(chosen, str) and (kind := strategies().get(chosen)) is not None:
            kind.defaults(tree)
        if isinstance(model := tree.get("model"), dict):
            model.setdefault("kind", "torch" if "net" in model else "linear")
            if model["kind"] == "torch":  # AdaGrad's step for sparse rows makes a network diverge
                tree["update"] = {"rule": "adam", **tree.get("update", {})}
        _check_names(tree)
        try:
            if "strategy" in tree:
                tree["strategy"] = _strategy(tree["strategy"])
            return msgspec.convert(tree, Job, strict=True)
        except msgspec.ValidationError as error:
            raise Invalid(_readable(str(error))) from None

    @classmethod
    def load(cls, path: Path, changes: Mapping[str, Any] | None = None) -> Job:
        """A job from a TOML file, with changes such as {"stop.epochs": 3}."""
        try:
            text = path.read_bytes().decode()
            settings = tomllib.loads(text)
        except OSError as error:
            raise Invalid(f"cannot read {path}: {error.strerror}: give a job file (TOML) or a data set") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{path} is no TOML: {error}") from None
        try:
            tree = changed(settings, changes or {})
            if "data" not in tree and "job" in settings:
                raise Invalid(f"it is a study, of many runs: shoal sweep {path}")
            if "data" not in tree:
                raise Invalid('it names no data: add a line such as data = "clicks"')
            return cls.of(beside(tree, path.parent))
        except Invalid as error:
            raise Invalid(f"{path}: {error}") from None

    @property
    def has_servers(self) -> bool:
        """Whether servers hold the model."""
        return self.strategy.has_servers(self)

    @property
    def has_workers(self) -> bool:
        """Whether there are worker processes."""
        return self.strategy.has_workers

    @property
    def linear(self) -> Linear:
        """The model of a run on sparse rows."""
        assert isinstance(self.model, Linear)
        return self.model

    def slots(self, rows: int) -> SlotOrder:
        """The slots of an epoch over so many rows."""
        return self.strategy.slots(rows, self.data.batch, self.seed)

    @property
    def identity(self) -> str:
        """A hash of the settings that identify the run; of data files only the names count."""
        tree = {name: value for name, value in msgspec.to_builtins(self).items() if name not in MAY_CHANGE}
        tree["update"] = self.update.identity
        if not self.filters:
            del tree["filters"]  # as before this setting existed
        for name in ("admit", "evict"):  # likewise
            if not tree["strategy"].get(name, True):
                del tree["strategy"][name]
        if isinstance(self.model, Linear):
            del tree["model"]["kind"]  # likewise
        else:
            for name in ("device", "threads"):  # the place of computing may change
                del tree["model"][name]
        tree["data"] |= {name: Path(tree["data"][name]).name for name in ("source", "test")}
        return hashlib.sha256("".join(toml_lines(tree)).encode()).hexdigest()

    def toml(self) -> str:
        """All settings as a file that ``load`` reads; unset ones as comments."""
        return "".join(toml_lines(msgspec.to_builtins(self)))


def _strategy(settings: dict[str, Any]) -> Strategy:
    try:
        return msgspec.convert(settings, strategies()[settings["name"]], strict=True)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{what} - at `$.strategy{where or '`'}") from None


def _kinds_of(table: str) -> list[Any]:
    """The structs of settings that a table may have; none if it is one value, or unknown."""
    several: dict[str, Any] = {"strategy": strategies(), "model": MODELS}
    kinds = several.get(table) or {table: _TYPES.get(table)}
    return [kind for kind in kinds.values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


def _check_names(tree: Mapping[str, Any]) -> None:
    """Refuse unknown settings, and suggest the nearest name."""
    tables, kinds = {name: _kinds_of(name) for name in Job.__struct_fields__}, strategies()
    inner = {name: [one for kind in its for one in kind.__struct_fields__] for name, its in tables.items()}
    known = list(dict.fromkeys(one for name in tables for one in (name, *(f"{name}.{its}" for its in inner[name]))))
    for name, value in tree.items():
        if name == "out":
            raise Invalid("no setting 'out': give the folder beside the job: shoal train job.toml --out runs/mine")
        if name not in tables:
            raise Invalid(f"no setting {name!r}{_instead(name, known)}")
        table = tables[name][:1]
        if name == "strategy":
            chosen = value.get("name") if isinstance(value, Mapping) else None
            if not isinstance(chosen, str) or chosen not in kinds:
                raise Invalid(
                    f"no strategy {chosen!r}{registry.near(str(chosen), kinds)} (strategies: {', '.join(kinds)})"
                )
            table = [kinds[chosen]]
        if not isinstance(value, Mapping):
            continue
        if name == "model":
            table = [MODELS.get(str(value["kind"]), Linear)]
        if not table:
            raise Invalid(f"{name} is one value and has no settings of its own: {name}={value!r}")
        inside = [*table[0].__struct_fields__, *{"strategy": ["name"], "model": ["kind"]}.get(name, [])]
        for setting in value:
            if setting in inside:
                continue
            others = [one for one, kind in kinds.items() if setting in kind.__struct_fields__]
            if name == "strategy" and others:
                raise Invalid(f"strategy {value['name']!r} has no setting {setting!r}, only {', '.join(others)}")
            near = _instead(f"{name}.{setting}", known, [f"{name}.{one}" for one in table[0].__struct_fields__])
            raise Invalid(f"no setting {name}.{setting}{near}")


def _instead(name: str, known: list[str], first: list[str] | None = None) -> str:
    """The nearest valid name, by the whole or by its last part."""
    tail = name.split(".")[-1]
    if near := get_close_matches(name, [one for one in known if ("." in one) == ("." in name)], n=1, cutoff=0.75):
        return f": did you mean {near[0]!r}?"
    own = {one.split(".")[-1]: one for one in first or []}
    others = {one.split(".")[-1]: one for one in reversed(known) if "." in one or "." not in name}
    if near := get_close_matches(tail, own, n=1, cutoff=0.7):
        return f": did you mean {own[near[0]]!r}?"
    if near := [tail] if tail in others else get_close_matches(tail, others, n=1, cutoff=0.6):
        return f": did you mean {others[near[0]]!r}?"
    return f" (settings: {', '.join(first or known)})"


def _readable(error: str) -> str:
    """Turn msgspec's "Expected `int`, got `str` - at `$.stop.epochs`" into our form."""
    what, _, where = error.partition(" - at `$")
    setting = where.strip("`.")
    if not setting or what.startswith(f"{setting}."):
        return what
    if what.startswith("Invalid enum value"):
        given = what.split("'")[1]
        choices = [one for one in _choices(setting) if one != given]
        near = get_close_matches(given, choices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{setting}: {what}: {hint}(there are {', '.join(choices)})"
    kinds = [_KINDS[kind] for kind in what.partition("`")[2].partition("`")[0].split(" | ") if kind in _KINDS]
    if _KINDS["str"] in kinds and (choices := _choices(setting)):
        kinds = choices
    return f"{setting}: {what}" + (f": give {' or '.join(kinds)}" if kinds else "")


def _choices(setting: str) -> list[str]:
    """The choices of a setting such as model.loss, with a note if it may be a number."""
    table, _, name = setting.partition(".")
    found: list[Any] = []
    for kind in _kinds_of(table):
        for field in msgspec.structs.fields(kind):
            parts = get_args(field.type) if field.name == name else ()
            found += [one for part in parts for one in (get_args(part) or (part,))]
    names = [one for one in found if isinstance(one, str)]
    return list(dict.fromkeys([*names, *(["a whole number"] if names and int in found else [])]))


resolve_types(Job)
_TYPES = {field.name: field.type for field in msgspec.structs.fields(Job)}
