"""Filters on the pushes of real slots, alone and together, against numpy, lz4 and zstandard.

    slots     of RCV1, 256 rows each: keys, and gradients after one epoch of SGD. Made-up rows
              without $SHOAL_DATA, and the table says so
    plain     8-byte keys and 4-byte values: 12 bytes a key
    ratio     plain bytes over those that a filter leaves
    MB/s      plain bytes over the time of one core, to encode and to decode
    rival     the same with numpy (``astype``, ``argpartition``, ``diff``, ``packbits``), lz4 or
              zstandard on the same bytes

Ours and the rival run by turns; a time is the best of the turns.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np

from benchmarks.harness import Bench, Columns, Option, Record, Report, Say, quiet, report, sheet, timed
from shoal.data.batch import Localiser
from shoal.data.datasets import VARIABLE, DataSource, load
from shoal.data.packed import sparse
from shoal.data.slots import Slots
from shoal.errors import Invalid
from shoal.filters import described
from shoal.filters.base import taken
from shoal.filters.chain import Chain
from shoal.keys import Keys, Values
from shoal.models.learner import learner_of
from shoal.models.linear import Linear
from shoal.wire.messages.base import Array

if TYPE_CHECKING:
    from rich.table import Table

Pushed = tuple[Keys, Values]
NAMED: dict[str, list[Any]] = {
    "significant": [{"name": "significant", "threshold": 1e-3}],
    "skip": ["skip"],
    "top": ["top"],
    "float16": ["float16"],
    "bfloat16": ["bfloat16"],
    "int8": ["int8"],
    "one_bit": ["one_bit"],
    "delta": ["delta"],
    "lz4": ["lz4"],
    "zstd": ["zstd"],
    "delta, zstd": ["delta", "zstd"],
    "int8, delta, zstd": ["int8", "delta", "zstd"],
    "one_bit, delta, zstd": ["one_bit", "delta", "zstd"],
    "top, int8, delta, zstd": ["top", "int8", "delta", "zstd"],
}


class Settings(Record, frozen=True, kw_only=True):
    """What is measured, and how often."""

    slots: int = 40
    repeat: int = 9  # turns
    rows: int = 20_000  # of the made-up set, where there is no RCV1


FULL = Settings()
QUICK = Settings(slots=8, repeat=3)


class Case(Record, frozen=True):
    """Bytes left and seconds to encode and decode all slots; and the rival's."""

    name: str
    left: int
    encode: float
    decode: float
    rival: str = ""
    rival_left: int = 0
    rival_encode: float = 0.0


class Results(Report[Settings, Case], frozen=True, kw_only=True):
    """With what was pushed."""

    data: str
    keys: int  # in all slots
    plain: int  # bytes


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if settings.slots < 1 or settings.repeat < 1 or settings.rows < 1:
        raise Invalid("a benchmark needs slots, rows and at least one repeat")
    data, pushes = _pushes(settings)
    keys = sum(len(one) for one, _ in pushes)
    say(f"{data}: {len(pushes)} slots with {keys:,} keys")
    cases = (_case(settings, name, Chain(described(named), warm=True), pushes) for name, named in NAMED.items())
    return report(Results, settings, cases, say, _columns(12 * keys), data=data, keys=keys, plain=12 * keys)


def _pushes(settings: Settings) -> tuple[str, list[Pushed]]:
    """The gradients of the last slots of a pass."""
    real = bool(os.environ.get(VARIABLE))
    source = DataSource("rcv1") if real else DataSource("rcv1-like", rows=settings.rows)
    dataset = load(source, 0)
    slots = Slots(dataset.train.rows, 256, 0)
    learner, train = learner_of(Linear(), dataset.train, 0), sparse(dataset.train)
    localiser, weights = Localiser(train.features), np.zeros(learner.keys, np.float32)
    found: list[Pushed] = []
    for content in range(slots.per_pass):
        local = localiser.local(train.slice(*slots.span(content)), True)
        keys = local.listed.keys
        _, gradient = learner.gradient(local, weights[keys], True)
        weights[keys] -= 0.5 * gradient.reshape(-1)
        found.append((keys, gradient.reshape(-1, 1)))
    return "RCV1" if real else "made-up rows like RCV1", found[-settings.slots :]


def _case(settings: Settings, name: str, chain: Chain, pushes: list[Pushed]) -> Case:
    sent: list[tuple[int, list[Any]]] = []

    def encode() -> None:
        sent.clear()
        for number, (keys, values) in enumerate(pushes):
            mask = chain.chosen(values, number, listed=True)
            if mask is not None:
                keys, values = keys[mask], taken(values, mask)
            codes, head = chain.shortened(values, number)
            sent.append((len(keys), chain.pushed([keys, codes], head, 1)))

    def decode() -> None:
        for rows, arrays in sent:
            chain.opened_push(arrays, rows, -1, 1, "float32")

    rival = RIVALS.get(name)
    sizes: list[int] = []

    def race() -> None:
        assert rival is not None
        sizes[:] = [rival[1](keys, values) for keys, values in pushes]

    times: dict[str, list[float]] = {"encode": [], "decode": [], "rival": []}
    for _ in range(settings.repeat + 1):  # the first loads what is loaded late
        times["encode"].append(timed(encode))
        times["decode"].append(timed(decode))
        if rival is not None:
            times["rival"].append(timed(race))
    left = sum(array.nbytes for _, arrays in sent for array in arrays)
    found = Case(name, left, min(times["encode"]), min(times["decode"]))
    if rival is None:
        return found
    return msgspec.structs.replace(found, rival=rival[0], rival_left=sum(sizes), rival_encode=min(times["rival"]))


# ---------------------------------------------------------------- what a user has at hand


def _above(keys: Keys, values: Values) -> int:
    return 12 * len(keys[np.abs(values[:, 0]) > 1e-3])


def _drawn(keys: Keys, values: Values) -> int:
    return 12 * len(keys[np.random.default_rng(0).random(len(keys)) >= 0.5])


def _largest(keys: Keys, values: Values) -> int:
    most = -(-len(keys) // 10)
    where = np.argpartition(np.abs(values[:, 0]), -most)[-most:]
    return 12 * len(keys[np.sort(where)])


def _half(keys: Keys, values: Values) -> int:
    return keys.nbytes + values.astype(np.float16).nbytes


def _upper(keys: Keys, values: Values) -> int:
    return keys.nbytes + int((values.view(np.uint32) >> 16).astype(np.uint16).nbytes)


def _bytes(keys: Keys, values: Values) -> int:
    codes: Array = np.rint(values * (127 / np.abs(values).max())).astype(np.int8)
    return keys.nbytes + codes.nbytes + 4


def _signs(keys: Keys, values: Values) -> int:
    return keys.nbytes + np.packbits(values[:, 0] > 0).nbytes + 8


def _steps(keys: Keys, values: Values) -> int:
    steps = np.diff(keys, prepend=np.uint64(0))
    return int(steps.astype(np.min_scalar_type(steps.max())).nbytes) + values.nbytes


def _lz4(keys: Keys, values: Values) -> int:
    press = importlib.import_module("lz4.block").compress
    return sum(len(press(one.tobytes())) for one in (keys, values))


def _zstd(keys: Keys, values: Values) -> int:
    press = importlib.import_module("zstandard").ZstdCompressor(level=1).compress
    return sum(len(press(one.tobytes())) for one in (keys, values))


RIVALS: dict[str, tuple[str, Callable[[Keys, Values], int]]] = {
    "significant": ("numpy", _above),
    "skip": ("numpy", _drawn),
    "top": ("numpy", _largest),
    "float16": ("numpy", _half),
    "bfloat16": ("numpy, cut off", _upper),
    "int8": ("numpy, no chance", _bytes),
    "one_bit": ("numpy, signs", _signs),
    "delta": ("numpy", _steps),
    "lz4": ("lz4", _lz4),
    "zstd": ("zstandard", _zstd),
}


def _columns(plain: int) -> Columns:
    def ratio(left: int) -> str:
        return f"{plain / left:.1f}" if left else ""

    def speed(seconds: float) -> str:
        return f"{plain / seconds / 1e6:,.0f}" if seconds else ""

    return (
        ("<filters", "{0.name}"),
        ("MB", lambda case: f"{case.left / 1e6:.2f}"),
        ("ratio", lambda case: ratio(case.left)),
        ("encode MB/s", lambda case: speed(case.encode)),
        ("decode MB/s", lambda case: speed(case.decode)),
        ("<rival", "{0.rival}"),
        ("ratio", lambda case: ratio(case.rival_left)),
        ("encode MB/s", lambda case: speed(case.rival_encode)),
    )


def table(results: Results) -> Table:
    pushed = f"pushes of {results.settings.slots} slots, {results.keys:,} keys, {results.plain / 1e6:.1f} MB plain"
    return sheet(
        f"{results.data}: {pushed}",
        _columns(results.plain),
        results.cases,
        f"one of {results.machine}; MB/s are of plain bytes",
    )


BENCH = Bench(
    help="Filters on the pushes of RCV1 (from SHOAL_DATA), against numpy, lz4 and zstandard used plainly: bytes and speed.",
    quick_help="Fewer slots and repeats.",
    measure=measure,
    table=table,
    options=(Option("slots", "How many.  [default: 40]", click.IntRange(1)),),
)
