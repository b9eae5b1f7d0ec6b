"""Reads arrays from an .npz file of numpy.savez. Never unpickles anything.

    x_train, y_train         rows, and a number for each; also x, y or inputs, labels
    x_test, y_test           test rows; without them some rows are held out
    classes, factor, shift   optional single numbers (see ``dense_file``), as ``shoal data split``
                             writes them

Bytes stay bytes, everything else becomes float32. Sizes are checked before memory is allocated.
"""

from __future__ import annotations

import io
import lzma
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Floats
from shoal.data.dense_file import AXES, CLASSES, DenseExamples, DensePair, Inputs
from shoal.errors import Invalid
from shoal.limits import EXPANSION, EXPANSION_FROM, MB

SUFFIX = ".npz"
TRAIN = (("x_train", "y_train"), ("x", "y"), ("inputs", "labels"))
TEST = ("x_test", "y_test")
HEAD = 1 << 14  # largest header in bytes
NUMBERS = "buif"  # numpy's kinds: bool, unsigned, signed, floating point
BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError)

_SAVE = "write it with numpy.savez(path, x=..., y=...)"


def read(path: Path, test: Path | None = None) -> DensePair:
    with _Archive(path) as archive:
        names = archive.first(TRAIN)
        train, scale, classes = archive.examples(*names), archive.scale(), archive.classes()
        judged = archive.examples(*TEST) if test is None and archive.has_both(TEST) else None
    if test is not None:
        with _Archive(test) as other:
            judged = other.examples(*other.first((TEST, *TRAIN)))
    if judged is not None and judged.inputs.shape[1:] != train.inputs.shape[1:]:
        one, two = train.inputs.shape[1:], judged.inputs.shape[1:]
        raise Invalid(f"{test or path}: rows to test on have shape {two}, those to train on {one}: make them alike")
    if judged is not None and judged.inputs.dtype != train.inputs.dtype:
        train, judged = (DenseExamples(some.inputs.astype(np.float32), some.labels) for some in (train, judged))
    if classes:
        _check_classes(path, classes, train)
        _check_classes(test or path, classes, judged)
    return DensePair(train, judged, scale, classes)


def _check_classes(path: Path, classes: int, some: DenseExamples | None) -> None:
    labels = np.empty(0) if some is None else some.labels
    odd = labels[(labels < 0) | (labels >= classes) | (labels != np.floor(labels))]
    if len(odd):
        raise Invalid(
            f"{path}: classes is {classes:,}, and there is a label {odd[0]:g}: they are 0 to {classes - 1:,}; write the right "
            f"number of them, or leave it out"
        )


class _Archive:
    """An open file; any error in it becomes ``Invalid``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> _Archive:
        try:
            self._size = self.path.stat().st_size
            self._zip = zipfile.ZipFile(self.path)
        except OSError as error:
            raise Invalid(f"{self.path} cannot be read: {error.strerror or error}: give a file that can") from None
        except BROKEN as error:
            what = "is empty" if not self._size else f"is no .npz file ({error})"
            raise Invalid(f"{self.path} {what}: {_SAVE}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def has_both(self, names: tuple[str, str]) -> bool:
        """Whether both arrays exist; Invalid if only one does."""
        there = [f"{name}.npy" in self._zip.NameToInfo for name in names]
        if any(there) and not all(there):
            one, other = names if there[0] else names[::-1]
            raise self._wrong(f"has {one} and no {other}", "give both, or neither")
        return all(there)

    def first(self, choices: tuple[tuple[str, str], ...]) -> tuple[str, str]:
        for names in choices:
            if all(f"{name}.npy" in self._zip.NameToInfo for name in names):
                return names
        have = ", ".join(name.removesuffix(".npy") for name in self._zip.namelist()[:10]) or "nothing"
        wanted = " or ".join(", ".join(names) for names in choices)
        raise self._wrong(f"has {have[:200]!r} in it, and arrays {wanted} are needed", _SAVE)

    def scale(self) -> tuple[float, float] | None:
        factor, shift = self.number("factor"), self.number("shift")
        return None if factor is None or shift is None else (factor, shift)

    def classes(self) -> int | None:
        number = self.number("classes")
        if number is not None and not (0 <= number <= CLASSES and number.is_integer()):
            raise self._wrong(f"classes is {number:g}", f"give 1 to {CLASSES:,}, 0 for numbers, or leave it out")
        return None if number is None else int(number)

    def number(self, name: str) -> float | None:
        if f"{name}.npy" not in self._zip.NameToInfo:
            return None
        array = self._array(name)
        if array.size != 1 or not math.isfinite(number := float(array.reshape(-1)[0])) or abs(number) > 1e9:
            raise self._wrong(f"{name} is no single number", "write one, or leave it out")
        return number

    def examples(self, x: str, y: str) -> DenseExamples:
        inputs, labels = self._inputs(x), self._labels(y)
        if len(inputs) != len(labels):
            raise self._wrong(f"{x} has {len(inputs):,} rows and {y} {len(labels):,}", "give one label for each row")
        return DenseExamples(inputs, labels)

    def _inputs(self, name: str) -> Inputs:
        array = self._array(name)
        if not array.ndim or not array.size or array.ndim > AXES:
            raise self._wrong(f"{name} has shape {array.shape}", "rows are needed, at least one, and numbers in them")
        if array.ndim == 1:
            array = array[:, None]
        if array.dtype == np.bool_:
            return array.astype(np.uint8)
        return array if array.dtype == np.uint8 else self._floats(name, array)

    def _labels(self, name: str) -> Floats:
        array = self._array(name)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise self._wrong(f"{name} has shape {array.shape}", "one number a row (of one-hot rows: y.argmax(axis=1))")
        return self._floats(name, array)

    def _floats(self, name: str, array: npt.NDArray[Any]) -> Floats:
        with np.errstate(over="ignore"):
            floats = np.ascontiguousarray(array, np.float32)
        fine = np.isfinite(floats)
        if not fine.all():
            row = int(np.flatnonzero(~fine.reshape(len(floats), -1).all(axis=1))[0])
            raise self._wrong(f"row {row:,} of {name} is not finite, or too large for float32", "fix or drop it")
        return floats

    def _array(self, name: str) -> npt.NDArray[Any]:
        info = self._zip.NameToInfo[f"{name}.npy"]
        if info.file_size > EXPANSION_FROM and info.file_size > EXPANSION * max(1, info.compress_size):
            raise self._wrong(f"{name} would grow to {info.file_size // MB:,} MB, more than {EXPANSION}-fold", _SAVE)
        try:
            with self._zip.open(info) as member:
                head = io.BytesIO(member.read(HEAD))
                shape, fortran, kind = _header(head)
                if min(shape, default=0) < 0:
                    raise ValueError(f"its shape is {shape}")
                if kind.hasobject or kind.kind not in NUMBERS:
                    raise self._wrong(f"{name} holds {kind}, no plain numbers", "convert them, and save again")
                size = math.prod(shape) * kind.itemsize
                if info.file_size - head.tell() != size:
                    raise self._wrong(f"{name} says {size:,} bytes and has {info.file_size - head.tell():,}", _SAVE)
                self._check_room(name, size)
                content = head.read() + member.read(size)
                if len(content) != size:
                    raise self._wrong(f"{name} ends in the middle", _SAVE)
                return np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")
        except Invalid:
            raise
        except MemoryError:
            raise self._wrong(f"{name} does not fit into memory", "give fewer rows in a file") from None
        except (*BROKEN, OSError) as error:
            why = str(error).partition("\n")[0][:200] or type(error).__name__
            raise self._wrong(f"{name} is damaged ({why})", _SAVE) from None

    def _check_room(self, name: str, size: int) -> None:
        import psutil

        if 2 * size > (free := int(psutil.virtual_memory().available)):
            what = f"{name} has {size // MB:,} MB, and with {free // MB:,} MB free it cannot be read"
            raise self._wrong(what, "give fewer rows in a file, or bytes (uint8)")

    def _wrong(self, what: str, move: str) -> Invalid:
        return Invalid(f"{self.path}: {what}: {move}")


def _header(head: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(head)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format {version} is not for plain numbers")
    try:
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(head)
        return np.lib.format.read_array_header_2_0(head)
    except Exception as error:  # it is parsed as Python, which may raise anything
        raise ValueError(str(error)) from None
