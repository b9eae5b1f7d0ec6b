"""Filters reduce what travels between clients and servers: fewer rows, bits and bytes.

A table names its filters, and both sides know them by name. They act in this order: sparsifiers,
quantizers, compressors (see ``base``).

    shoal.Sparse(keys=N, filters=[shoal.Significant(1e-4), shoal.Int8(), shoal.Zstd()])

Your own filter is a class in a module that the servers import:

    @shoal.filter(least=0.5)
    class loud(shoal.filters.Sparsifier):
        def choose(self, values, seed):
            return abs(values).max(axis=1) >= self.settings.least

    shoal.Sparse(keys=N, filters=[loud(least=2.0)])

``chain`` combines a table's filters. The client keeps what a push lost and adds it to the next one
(``store.client.filtering``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import Invalid
from shoal.filters.base import SORTS, Base, RegisteredFilter
from shoal.filters.base import Bytes as Bytes
from shoal.filters.base import Compressor as Compressor
from shoal.filters.base import Mask as Mask
from shoal.filters.base import Quantizer as Quantizer
from shoal.filters.base import Sparsifier as Sparsifier
from shoal.registry import check_setting, check_taken, near
from shoal.tables import Filter

PUBLIC = ("base", "chain", "user_filter")

# Their names in 0.1.0: users' filters that derive from these keep working.
Choosing, Shortening, Pressing = Sparsifier, Quantizer, Compressor


class FilterConstructor(msgspec.Struct, frozen=True):
    """Replaces a decorated class: called with settings, it makes the Filter for a table."""

    known: RegisteredFilter

    def __call__(self, **settings: float) -> Filter:
        self.known.made(settings)
        return Filter(self.known.name, {name: float(value) for name, value in settings.items()})


def filter(**settings: float) -> Callable[[type[Base]], FilterConstructor]:
    """Register a class as a filter under its own name, with these settings and their defaults."""

    def register(kind: type[Base]) -> FilterConstructor:
        name = getattr(kind, "__name__", "")
        if not inspect.isclass(kind) or not issubclass(kind, Sparsifier | Quantizer | Compressor):
            raise Invalid(f"{kind!r} cannot be a filter: take a Sparsifier, Quantizer or Compressor of shoal.filters")
        if name in _own():
            raise Invalid(f"filter {name!r} is one of shoal's own: give your class another name")
        check_taken("filter", name, _known[name].kind if name in _known else None, kind)
        for one in settings:
            check_setting(one)
        if inspect.isabstract(kind):
            missing = ", ".join(sorted(kind.__abstractmethods__))
            raise Invalid(f"filter {name!r} lacks {missing}: implement it, see shoal.filters.base")
        known = RegisteredFilter(name, kind, {one: float(value) for one, value in settings.items()})
        known.made({})
        _known[name] = known
        return FilterConstructor(known)

    return register


def known(name: str) -> RegisteredFilter:
    found = _all().get(name)
    if found is None:
        names = sorted(_all())
        raise Invalid(
            f"no filter {name!r} here{near(name, names)} (known: {', '.join(names)}); name the module of your own one: "
            f"shoal.local(..., modules=['my_module']), or launch.modules of a job"
        )
    return found


def described(given: Sequence[str | Mapping[str, Any]]) -> list[Filter]:
    """Filters as a job names them: "zstd", or {name = "zstd", level = 3}."""
    found: list[Filter] = []
    for one in given:
        settings = {"name": one} if isinstance(one, str) else dict(one)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise Invalid(f'filters: {one!r} has no name: write {{name = "significant", threshold = 1e-4}}')
        if (bad := [one for one, value in settings.items() if not isinstance(value, bool | int | float)]) != []:
            raise Invalid(f"filter {name!r}, {bad[0]}={settings[bad[0]]!r}: needs a finite number")
        found.append(Filter(name, {one: float(value) for one, value in settings.items()}))
    return found


def are_known(filters: Sequence[Filter]) -> bool:
    return all(one.name in _all() for one in filters)


def acts(name: str) -> int:
    """The position of a filter by its sort; an unknown one stands in the middle."""
    found = _all().get(name)
    return 1 if found is None else SORTS.index(found.kind.sort)


def made(filters: Sequence[Filter]) -> list[tuple[str, Base]]:
    """The filters by name, in the order in which they act; raises Invalid."""
    found = [(one.name, known(one.name).made(one.settings)) for one in filters]
    # stable: of one sort, as they were named
    return sorted(found, key=lambda one: SORTS.index(one[1].sort))


def _own() -> Mapping[str, RegisteredFilter]:
    from shoal.filters import compress, quantize, sparsify

    return {**sparsify.KNOWN, **quantize.KNOWN, **compress.KNOWN}


_known: dict[str, RegisteredFilter] = {}  # users'


def _all() -> Mapping[str, RegisteredFilter]:
    return {**_known, **_own()}


def Significant(threshold: float = 1e-4) -> Filter:
    """Push only rows with a value that changed by more than this since it was last sent."""
    return _named("significant", threshold=threshold)


def Skip(share: float = 0.5) -> Filter:
    """Skip a random share of the rows of a push; they go with a later one."""
    return _named("skip", share=share)


def TopK(k: int = 0, share: float = 0.1) -> Filter:
    """Push the ``k`` rows with the largest values, or, without k, this share of the rows."""
    return _named("top", k=k, share=share)


def Float16(pushes: bool = True, pulls: bool = True) -> Filter:
    """16-bit floats: three digits, up to 65,504."""
    return _named("float16", pushes=pushes, pulls=pulls)


def BFloat16(pushes: bool = True, pulls: bool = True) -> Filter:
    """16-bit floats: two digits, the range of float32."""
    return _named("bfloat16", pushes=pushes, pulls=pulls)


def Int8(pushes: bool = True, pulls: bool = True, chance: bool = True, steps: int = 127) -> Filter:
    """One byte per value: a column's largest value is ``steps`` steps from zero.

    Pushes are rounded at random (``chance``) or to the nearest. Fewer steps compress better.
    """
    return _named("int8", pushes=pushes, pulls=pulls, chance=chance, steps=steps)


def OneBit(chance: bool = True) -> Filter:
    """One bit per pushed value: the mean of its column's negative or of its positive values."""
    return _named("one_bit", chance=chance)


def DeltaKeys() -> Filter:
    """Sends sorted keys as differences, mostly one byte each."""
    return _named("delta")


def LZ4() -> Filter:
    """LZ4 compression: fast (pip install 'shoal[compress]')."""
    return _named("lz4")


def Zstd(level: int = 1) -> Filter:
    """Zstandard compression: small (pip install 'shoal[compress]')."""
    return _named("zstd", level=level)


def _named(name: str, **settings: float) -> Filter:
    return FilterConstructor(known(name))(**settings)
