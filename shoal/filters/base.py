"""The kinds of filters: what each must implement, and how settings are checked.

Sparsifier    fewer rows of a push; the rest stays with the client for a later push
Quantizer     fewer bits per value, of pushes and pulls
Compressor    fewer bytes per array of a message, without loss
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.keys import Values
from shoal.registry import merged_settings
from shoal.wire.messages.base import Array

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
SORTS = ("choosing", "shortening", "pressing")  # in the order in which they act


class Base(ABC):
    sort: ClassVar[str]
    # lowest and highest value of a setting
    bounds: ClassVar[Mapping[str, tuple[float, float]]] = {}
    whole: ClassVar[tuple[str, ...]] = ()  # integer settings
    compiled: ClassVar[bool] = False  # uses compiled kernels, which load slowly

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def check(self) -> None:
        """Raise Invalid if this filter cannot work here, e.g. lacks a library."""
        return


class Sparsifier(Base):
    """Chooses the rows of a push that are sent now."""

    sort = "choosing"

    @abstractmethod
    def choose(self, values: Values, seed: int) -> Mask:
        """True for each row of ``values`` (rows, width) to send; deterministic."""


class Quantizer(Base):
    """Encodes values in fewer bits, once per push, so that resends carry the same values."""

    sort = "shortening"
    # only for tables that sum pushes: what it loses is added to a later push
    sums: ClassVar[bool] = True
    directions: ClassVar[tuple[str, ...]] = ("pushes", "pulls")
    item: ClassVar[int] = 1  # bytes per code

    @property
    def pushes(self) -> bool:
        return "pushes" in self.directions and bool(getattr(self.settings, "pushes", 1.0))

    @property
    def pulls(self) -> bool:
        return "pulls" in self.directions and bool(getattr(self.settings, "pulls", 1.0))

    @abstractmethod
    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes] | None:
        """A row of codes per row, and the data shared by all rows; None if a value does not fit.

        With a seed, values between two codes are rounded at random, so that small ones count.
        """

    def pack(self, codes: Array) -> Bytes:
        """The bytes of rows of codes."""
        return np.ascontiguousarray(codes).reshape(-1).view(np.uint8)

    @abstractmethod
    def size(self, rows: int, width: int) -> int:
        """The size of that many packed rows with their shared data."""

    @abstractmethod
    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        """Decode to values (rows, width). Only the size of ``packed`` has been checked."""

    def held(self, values: Values) -> Values:
        """The nearest values that can be encoded; the rest goes with a later push."""
        return values


class Compressor(Base):
    """Compresses bytes without loss."""

    sort = "pressing"

    @abstractmethod
    def press(self, data: Bytes, item: int) -> Bytes | None:
        """Compress elements of ``item`` bytes (8: sorted keys); None if it does not apply."""

    @abstractmethod
    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        """Decompress to at most ``most`` bytes; raises ValueError if that fails."""


class RegisteredFilter(msgspec.Struct, frozen=True):
    name: str
    kind: type[Base]
    defaults: Mapping[str, float]

    def made(self, given: Mapping[str, float]) -> Base:
        made = self.kind(merged_settings(f"filter {self.name!r}", self.defaults, given, self._check))
        made.check()
        return made

    def _check(self, name: str, value: object) -> None:
        what = f"filter {self.name!r}, {name}={value!r}"
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or isinstance(value, str):
            raise Invalid(f"{what}: needs a finite number")
        least, most = self.kind.bounds.get(name, (-math.inf, math.inf))
        if not least <= number <= most:
            needs = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
            raise Invalid(f"{what}: needs {needs}")
        if name in self.kind.whole and number != int(number):
            raise Invalid(f"{what}: needs a whole number")


def taken(values: Values, mask: Mask) -> Values:
    """The masked rows in a new array (faster than numpy for arrays of one column)."""
    if values.shape[1] == 1:
        return values.reshape(-1)[mask].reshape(-1, 1)
    return np.take(values, np.flatnonzero(mask), axis=0)


def nonzero(values: Values) -> Mask:
    """Which rows have a value other than 0."""
    flat: Mask = values != 0
    return flat.reshape(-1) if values.shape[1] == 1 else np.asarray(flat.any(axis=1))
