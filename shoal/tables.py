"""Descriptions of tables: users create them, messages carry them, servers build them.

    Dense(rows=7_840)                         indices 0..rows
    Sparse(keys=1_000_000)                    ids below N; rows are created at their first push
    Sparse(hashed=True)                       any 63-bit id; hashed, so that ids spread evenly

Consistency is two settings:

    apply=Step(slots=m), max_delay=0          sync: one update per step of m slots
    apply=Each(), max_delay=k                 bounded delay: at most k steps ahead of the slowest
    apply=Each(), max_delay=None              asynchronous: never wait

A push may have several numbers per weight (``pushed``) if its rule takes them. Values are sent as
float32, or in half the bytes: ``wire="bfloat16"`` (two digits, the range of float32) or
``"float16"`` (three digits, up to 65,504). Rows, sums and replicas are float32: only what a client
pushes and pulls is rounded.
"""

from __future__ import annotations

import operator
from typing import Literal, get_args

import msgspec

from shoal.errors import Invalid
from shoal.limits import ADMIT, GIVEN_ABOUT, GIVEN_PATH, KEY_LIMIT, PUSHED, SLOTS_PER_STEP, WIDTH

TABLE = "weights"  # a run's model
TALLY = "tally"  # where there is such a table, every slot adds 1 to its own key


class Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An update rule that servers know by name, and its settings. Code never travels."""

    name: str
    settings: dict[str, float] = {}


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A filter that both sides know by name, and its settings."""

    name: str
    settings: dict[str, float] = {}


class Constant(msgspec.Struct, frozen=True, tag="constant", forbid_unknown_fields=True):
    """Every weight starts at the same value."""

    value: float = 0.0


class Uniform(msgspec.Struct, frozen=True, tag="uniform", forbid_unknown_fields=True):
    """Weights drawn evenly from [low, high), from key and seed alone: every server agrees."""

    low: float = -0.05
    high: float = 0.05
    seed: int = 0


class Normal(msgspec.Struct, frozen=True, tag="normal", forbid_unknown_fields=True):
    """Weights drawn from a normal distribution, from key and seed alone."""

    deviation: float = 0.01
    seed: int = 0


class Given(msgspec.Struct, frozen=True, tag="given", forbid_unknown_fields=True):
    """Initial weights of a dense table from a file, which every server reads.

    float32, little-endian, row after row. ``about`` describes them for nodes that join later: a
    module's parameters differ from node to node if this does.
    """

    path: str
    crc32: int  # of the file
    about: str = ""


Initial = Constant | Uniform | Normal | Given


class Each(msgspec.Struct, frozen=True, tag="each", forbid_unknown_fields=True):
    """A push is counted on arrival."""

    damp_above: int | None = None  # gradients staler than this are scaled down


class Step(msgspec.Struct, frozen=True, tag="step", forbid_unknown_fields=True):
    """Step t of an epoch adds its slots t*m .. t*m+m-1 in order, then makes one update."""

    slots: int = 8
    combine: Literal["sum", "mean"] = "sum"
    slots_per_pass: int | None = None  # None: one endless epoch

    def steps_per_pass(self) -> int | None:
        return None if self.slots_per_pass is None else -(-self.slots_per_pass // self.slots)

    def step_of(self, slot: tuple[int, int]) -> int:
        """The step, counted over all epochs, of a slot (epoch, number)."""
        of_pass, number = slot
        if number < 0 or of_pass < 0:
            raise Invalid(f"slot {slot}: pass and number are not negative")
        per_pass = self.steps_per_pass()
        if per_pass is None or self.slots_per_pass is None:
            if of_pass != 0:
                raise Invalid(f"slot {slot}: this table has one endless pass; set slots_per_pass to have more")
            return number // self.slots
        if number >= self.slots_per_pass:
            raise Invalid(f"slot {slot}: a pass of this table has {self.slots_per_pass} slots")
        return of_pass * per_pass + number // self.slots

    def first_slot(self, step: int) -> int:
        """The number, in its epoch, of a step's first slot."""
        per_pass = self.steps_per_pass()
        return (step if per_pass is None else step % per_pass) * self.slots

    def slots_in(self, step: int) -> int:
        """The number of slots of a step: the last step of an epoch may have fewer."""
        per_pass = self.steps_per_pass()
        if per_pass is None or self.slots_per_pass is None or step % per_pass != per_pass - 1:
            return self.slots
        return self.slots_per_pass - (per_pass - 1) * self.slots


Apply = Each | Step
Wire = Literal["float32", "float16", "bfloat16"]  # format of values between client and server


class Dense(msgspec.Struct, frozen=True, tag="dense", forbid_unknown_fields=True, kw_only=True):
    """Rows 0..rows, all present from the start."""

    rows: int
    width: int = 1
    update: Update = Update("sum")
    initial: Initial = Constant()
    apply: Apply = Each()
    max_delay: int | None = None
    wire: Wire = "float32"
    pushed: int = 1
    filters: list[Filter] = []

    @property
    def span(self) -> int:
        return self.rows

    @property
    def hashed(self) -> bool:
        return False

    @property
    def push_width(self) -> int:
        """Numbers in one row of a push: the first kind for all weights, then the second."""
        return self.width * self.pushed


class Sparse(msgspec.Struct, frozen=True, tag="sparse", forbid_unknown_fields=True, kw_only=True):
    """Rows created at their first push; other keys have their initial values."""

    keys: int | None = None
    hashed: bool = False
    width: int = 1
    update: Update = Update("sum")
    initial: Initial = Constant()
    apply: Apply = Each()
    max_delay: int | None = None
    wire: Wire = "float32"
    pushed: int = 1
    filters: list[Filter] = []
    admit: int = 0  # pushes of a key until it gets a row; earlier ones are lost
    evict: bool = False  # drop rows that are zero again, with their state

    @property
    def span(self) -> int:
        return KEY_LIMIT if self.keys is None else self.keys

    @property
    def push_width(self) -> int:
        return self.width * self.pushed


Table = Dense | Sparse


def checked(spec: Table) -> Table:
    """The same description with plain numbers; raises Invalid if it is wrong."""
    spec = _plain(spec)
    if isinstance(spec, Sparse):
        if isinstance(spec.initial, Given):
            raise Invalid("initial weights from a file belong to a dense table: shoal.Dense(rows=..., initial=...)")
        if (spec.keys is None) == (not spec.hashed):
            raise Invalid("a sparse table declares keys=N (ids below N) or hashed=True (any id): one of the two")
        if spec.keys is not None and not 1 <= spec.keys <= KEY_LIMIT:
            raise Invalid(f"keys={spec.keys}: needs 1 to 2^63")
        _check_rare(spec)
    elif not 1 <= spec.rows <= KEY_LIMIT:
        raise Invalid(f"rows={spec.rows}: needs 1 to 2^63")
    if isinstance(spec.initial, Given):
        _check_given(spec.initial)
    if not 1 <= spec.width <= WIDTH:
        raise Invalid(f"width={spec.width}: needs 1 to {WIDTH}")
    if not 1 <= spec.pushed <= PUSHED:
        raise Invalid(f"pushed={spec.pushed}: a push brings 1 to {PUSHED} numbers for each weight")
    if spec.push_width > WIDTH:
        raise Invalid(f"width={spec.width}, pushed={spec.pushed}: a row has at most {WIDTH} numbers, narrow the table")
    if spec.max_delay is not None and spec.max_delay < 0:
        raise Invalid(f"max_delay={spec.max_delay}: needs 0 or more, or None for no bound")
    if isinstance(spec.apply, Each) and spec.apply.damp_above is not None and spec.apply.damp_above < 1:
        raise Invalid(f"damp_above={spec.apply.damp_above}: needs 1 or more, or None")
    if isinstance(spec.apply, Step):
        if not 1 <= spec.apply.slots <= SLOTS_PER_STEP:
            raise Invalid(f"slots={spec.apply.slots}: a step has 1 to {SLOTS_PER_STEP} slots")
        if spec.apply.slots_per_pass is not None and spec.apply.slots_per_pass < 1:
            raise Invalid(f"slots_per_pass={spec.apply.slots_per_pass}: needs at least 1")
    return spec


def _check_rare(spec: Sparse) -> None:
    if not 0 <= spec.admit <= ADMIT:
        raise Invalid(f"admit={spec.admit}: a key gets a row at its n-th push, n from 0 (at once) to {ADMIT}")
    if spec.evict and not (isinstance(spec.initial, Constant) and spec.initial.value == 0):
        raise Invalid(f"evict=True and initial={spec.initial!r}: a dropped row must read as 0: leave one out")


def _check_given(initial: Given) -> None:
    path, about = initial.path, initial.about
    if (size := len(path.encode())) > GIVEN_PATH:
        raise Invalid(f"the path of given weights has {size:,} bytes: at most {GIVEN_PATH:,}, put the file elsewhere")
    if "\0" in path:
        raise Invalid(f"weights are given in {path!r}, which has a zero byte in it: no file has such a name")
    if not path.startswith("/"):
        raise Invalid(f"weights are given in {path!r}, which depends on the folder: give the whole path, from / on")
    if (size := len(about.encode())) > GIVEN_ABOUT:
        raise Invalid(f"about of given weights has {size:,} bytes: at most {GIVEN_ABOUT:,}, a checksum of it will do")


def _plain(spec: Table) -> Table:
    if not isinstance(spec, Dense | Sparse):
        raise Invalid(f"{spec!r} is no table: describe one with shoal.Dense(...) or shoal.Sparse(...)")
    for field, kinds, how in (
        ("update", Update, "shoal.SGD(step=0.1), or your own with its parentheses: my_rule()"),
        ("initial", Constant | Uniform | Normal | Given, "shoal.Constant(0.5)"),
        ("apply", Each | Step, "shoal.Each() or shoal.Step(slots=8)"),
    ):
        if not isinstance(getattr(spec, field), kinds):
            raise Invalid(f"{field}={getattr(spec, field)!r}: needs something like {how}")
    if not isinstance(spec.filters, list | tuple) or not all(isinstance(one, Filter) for one in spec.filters):
        raise Invalid(
            f"filters={spec.filters!r}: needs a list, each with its parentheses: [shoal.Int8(), shoal.DeltaKeys()]"
        )
    if spec.wire not in get_args(Wire):
        raise Invalid(f"wire={spec.wire!r}: needs one of {', '.join(map(repr, get_args(Wire)))}")
    try:
        plain = msgspec.convert(msgspec.to_builtins(spec, enc_hook=_number), type(spec))
        msgspec.msgpack.encode(plain)  # it must fit a message
        return plain
    except UnicodeEncodeError as error:  # for example a file name that is not UTF-8
        raise Invalid(f"{type(spec).__name__}: {error.object[:100]!r} is not UTF-8: take another") from None
    except (msgspec.ValidationError, TypeError, OverflowError) as error:
        raise Invalid(f"{type(spec).__name__}: {error}") from None


def _number(value: object) -> int | float:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return float(value)  # type: ignore[arg-type]


def whole(what: str, value: object, most: int = 1 << 53) -> int:
    """An integer from 0 to ``most``, from any integer type; or Invalid."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise Invalid(f"{what}={value!r}: needs a whole number") from None
    if not 0 <= number <= most:
        raise Invalid(f"{what}={value!r}: needs 0 to {most}")
    return number
