"""Made light for the road: what travels between clients and servers, with fewer keys, fewer values and fewer bytes.

A table names its filters, and both sides know them by their names. There are three sorts, and they act in this order:

    choosing      fewer rows of a push: what is left out stays with the client and goes with a later one
    shortening    fewer bits for each value, of pushes and of pulls
    pressing      fewer bytes for each array of a message, and nothing is lost

    shoal.Sparse(keys=N, filters=[shoal.Significant(1e-4), shoal.Int8(), shoal.DeltaKeys(), shoal.Zstd()])

A filter of your own is one class, in a module that the servers are started with:

    @shoal.filter(least=0.5)
    class loud(shoal.filters.Sparsifier):
        def choose(self, values, seed):
            return abs(values).max(axis=1) >= self.settings.least

    shoal.Sparse(keys=N, filters=[loud(least=2.0)])

``chain`` puts a table's filters together. What a push lost is kept by ``store.feedback`` and added to the next one.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.keys import Values
from shoal.registry import (
    check_setting,
    check_taken,
    instead,
    near,
)
from shoal.tables import Filter
from shoal.wire.messages.base import Array

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
_named_tuple: Any = namedtuple  # type checkers want its fields written out
SORTS = ("choosing", "shortening", "pressing")  # as they act


class Base(ABC):
    """What all filters have: settings, each within its bounds."""

    sort: ClassVar[str]
    bounds: ClassVar[Mapping[str, tuple[float, float]]] = {}  # of settings: the least and the most
    whole: ClassVar[tuple[str, ...]] = ()  # settings that are whole numbers
    compiled: ClassVar[bool] = False  # uses the kernels, which take a while to load

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def check(self) -> None:
        """Raise Invalid if this filter cannot work here."""
        return


class Sparsifier(Base):
    """Which rows of a push go now."""

    sort = "choosing"

    @abstractmethod
    def choose(self, values: Values, seed: int) -> Mask:
        """True for each row of ``values`` (rows, width) that goes; the same for the same arguments."""


class Quantizer(Base):
    """Values in fewer bits. A whole push is shortened once, so that whatever is sent again, split otherwise, has the same values."""

    sort = "shortening"
    sums: ClassVar[bool] = True  # only for tables that add up what is pushed: what it loses has to come later
    directions: ClassVar[tuple[str, ...]] = ("pushes", "pulls")
    item: ClassVar[int] = 1  # bytes of a code

    @property
    def pushes(self) -> bool:
        return "pushes" in self.directions and bool(getattr(self.settings, "pushes", 1.0))

    @property
    def pulls(self) -> bool:
        return "pulls" in self.directions and bool(getattr(self.settings, "pulls", 1.0))

    @abstractmethod
    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes] | None:
        """One row of codes for each row, and what all of them need to be read; None if a value does not fit.

        With a seed chance may be used, and must be for a value that lies between two codes, lest small ones never count.
        """

    def pack(self, codes: Array) -> Bytes:
        """The bytes of some rows of codes."""
        return np.ascontiguousarray(codes).reshape(-1).view(np.uint8)

    @abstractmethod
    def size(self, rows: int, width: int) -> int:
        """Bytes of so many rows, packed, with what all of them need."""

    @abstractmethod
    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        """The values again, (rows, width); ``packed`` is of the right size, and nothing else is known of it."""

    def held(self, values: Values) -> Values:
        """The nearest values that fit: what is too large is cut, and the rest comes later."""
        return values


class Compressor(Base):
    """The same bytes, in fewer."""

    sort = "pressing"

    @abstractmethod
    def press(self, data: Bytes, item: int) -> Bytes | None:
        """Shorter bytes for these, of elements of ``item`` bytes each (8: sorted keys); None if that is not for this filter."""

    @abstractmethod
    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        """What was pressed, of no more than ``most`` bytes; ValueError if it cannot be."""


# Their names in 0.1.0: users' filters that derive from these keep working.
Choosing, Shortening, Pressing = Sparsifier, Quantizer, Compressor


@dataclass(frozen=True, slots=True)
class RegisteredFilter:
    """A filter that this process knows, with its settings and their defaults."""

    name: str
    kind: type[Base]
    defaults: Mapping[str, float]

    def made(self, given: Mapping[str, float]) -> Base:
        for name, value in given.items():
            if name not in self.defaults:
                raise Invalid(f"filter {self.name!r} has no setting {name!r}{instead(name, self.defaults)}")
            self._check(name, value)
        merged = {**self.defaults, **given}
        made = self.kind(_named_tuple("Settings", tuple(self.defaults))(*map(float, merged.values())))
        made.check()
        return made

    def _check(self, name: str, value: object) -> None:
        what = f"filter {self.name!r}, {name}={value!r}"
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or isinstance(value, str):
            raise Invalid(f"{what}: a finite number is needed")
        least, most = self.kind.bounds.get(name, (-math.inf, math.inf))
        if not least <= number <= most:
            needs = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
            raise Invalid(f"{what}: needs {needs}")
        if name in self.kind.whole and number != int(number):
            raise Invalid(f"{what}: a whole number is needed")


@dataclass(frozen=True, slots=True)
class FilterConstructor:
    """What the decorator leaves in place of a class: called with settings, it makes the Filter for a table."""

    known: RegisteredFilter

    def __call__(self, **settings: float) -> Filter:
        self.known.made(settings)
        return Filter(self.known.name, {name: float(value) for name, value in settings.items()})


def filter(**settings: float) -> Callable[[type[Base]], FilterConstructor]:
    """Register a class as a filter under its own name, with these settings and their defaults."""

    def register(kind: type[Base]) -> FilterConstructor:
        name = getattr(kind, "__name__", "")
        if not inspect.isclass(kind) or not issubclass(kind, Sparsifier | Quantizer | Compressor):
            raise Invalid(
                f"{kind!r} cannot be a filter: it needs a class of shoal.filters.Sparsifier, Quantizer or Compressor"
            )
        if name in _own():
            raise Invalid(f"filter {name!r} is one of shoal's own: give your class another name")
        check_taken("filter", name, _known[name].kind if name in _known else None, kind)
        for one in settings:
            check_setting(one)
        if inspect.isabstract(kind):
            missing = ", ".join(sorted(kind.__abstractmethods__))
            raise Invalid(f"filter {name!r} lacks {missing}: write that, too, as shoal.filters says what it does")
        known = RegisteredFilter(name, kind, {one: float(value) for one, value in settings.items()})
        known.made({})
        _known[name] = known
        return FilterConstructor(known)

    return register


def known(name: str) -> RegisteredFilter:
    """The filter that this process knows by that name."""
    found = _own().get(name) or _known.get(name)
    if found is None:
        names = sorted({*_own(), *_known})
        raise Invalid(
            f"no filter {name!r} here{near(name, names)} (known: {', '.join(names)}); one of your own is in a module that is named: "
            f"shoal.local(..., modules=['my_module']), or launch.modules of a job"
        )
    return found


def names() -> list[str]:
    """Of all filters that this process knows."""
    return sorted({*_own(), *_known})


def described(given: Sequence[str | Mapping[str, Any]]) -> list[Filter]:
    """Filters as a job names them: "zstd", or {name = "zstd", level = 3}."""
    found: list[Filter] = []
    for one in given:
        settings = {"name": one} if isinstance(one, str) else dict(one)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise Invalid(f'filters: {one!r} has no name: write {{name = "significant", threshold = 1e-4}}')
        if (bad := [one for one, value in settings.items() if not isinstance(value, bool | int | float)]) != []:
            raise Invalid(f"filter {name!r}, {bad[0]}={settings[bad[0]]!r}: a finite number is needed")
        found.append(Filter(name, {one: float(value) for one, value in settings.items()}))
    return found


def are_known(filters: Sequence[Filter]) -> bool:
    """Whether this process knows all of them; what it does not know is for others to judge."""
    return all(one.name in _known or one.name in _own() for one in filters)


def acts(name: str) -> int:
    """Where a filter stands among others: of what sort it is. One that is not known here stands in the middle."""
    found = _own().get(name) or _known.get(name)
    return 1 if found is None else SORTS.index(found.kind.sort)


def made(filters: Sequence[Filter]) -> list[tuple[str, Base]]:
    """The filters themselves, each by its name, in the order in which they act; or Invalid with what is wrong."""
    found = [(one.name, known(one.name).made(one.settings)) for one in filters]
    return sorted(found, key=lambda one: SORTS.index(one[1].sort))  # stable: of one sort, as they were named


def taken(values: Values, mask: Mask) -> Values:
    """Some rows, in an array of their own: numpy takes its time with masks of arrays of one column."""
    if values.shape[1] == 1:
        return values.reshape(-1)[mask].reshape(-1, 1)
    return np.take(values, np.flatnonzero(mask), axis=0)


def nonzero(values: Values) -> Mask:
    """Rows that have any value but 0."""
    flat: Mask = values != 0
    return flat.reshape(-1) if values.shape[1] == 1 else np.asarray(flat.any(axis=1))


def _own() -> Mapping[str, RegisteredFilter]:
    from shoal.filters import compress, quantize, sparsify

    return {**sparsify.KNOWN, **quantize.KNOWN, **compress.KNOWN}


_known: dict[str, RegisteredFilter] = {}


def Significant(threshold: float = 1e-4) -> Filter:
    """Push only rows of which some value changed by more than this since it was last sent (S1-14)."""
    return _named("significant", threshold=threshold)


def Skip(share: float = 0.5) -> Filter:
    """Leave out this share of the rows of a push, drawn by chance; they go with a later one."""
    return _named("skip", share=share)


def TopK(k: int = 0, share: float = 0.1) -> Filter:
    """Push the ``k`` rows with the largest values, or, without k, this share of all."""
    return _named("top", k=k, share=share)


def Float16(pushes: bool = True, pulls: bool = True) -> Filter:
    """Three digits, up to 65,504."""
    return _named("float16", pushes=pushes, pulls=pulls)


def BFloat16(pushes: bool = True, pulls: bool = True) -> Filter:
    """Two digits, and all of float32's range."""
    return _named("bfloat16", pushes=pushes, pulls=pulls)


def Int8(pushes: bool = True, pulls: bool = True, chance: bool = True, steps: int = 127) -> Filter:
    """One byte a value: the largest of a column is so many ``steps`` from zero. Pushes are rounded by chance, or to the nearest.

    With fewer steps Zstd makes the bytes fewer, too.
    """
    return _named("int8", pushes=pushes, pulls=pulls, chance=chance, steps=steps)


def OneBit(chance: bool = True) -> Filter:
    """One bit a value, of pushes only: the mean of what is below zero in its column, or of what is above, by chance or the nearer."""
    return _named("one_bit", chance=chance)


def DeltaKeys() -> Filter:
    """Keys as differences, most of them in one byte."""
    return _named("delta")


def LZ4() -> Filter:
    """Bytes pressed by LZ4: fast (pip install 'shoal[compress]')."""
    return _named("lz4")


def Zstd(level: int = 1) -> Filter:
    """Bytes pressed by Zstandard: small (pip install 'shoal[compress]')."""
    return _named("zstd", level=level)


def _named(name: str, **settings: float) -> Filter:
    return FilterConstructor(known(name))(**settings)
