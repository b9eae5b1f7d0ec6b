"""Divides the training rows of a set among clients; the test rows stay one set.

    even        equal ranges, in the order of the packed set (which is shuffled)
    shuffled    the same, in an order by the seed
    label       sorted by label, then divided: each client has few labels
    dirichlet   of each label, every client gets a share drawn from Dirichlet(alpha);
                a small alpha gives few labels each

    client-0.npz ... test.npz    dense sets        split.json    rows of each label by client
    client-0.svm ... test.svm    sparse ones       split.png     the same as a picture

Each of them can be trained: ``shoal train FOLDER/client-0.npz --test FOLDER/test.npz``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Floats, Ids
from shoal.data.csr_file import CsrFile, StagingFolder
from shoal.data.datasets import Dataset
from shoal.data.dense_file import DenseFile
from shoal.data.export import write_text
from shoal.errors import Invalid
from shoal.files import or_refuse, replace_file

By = Literal["even", "shuffled", "label", "dirichlet"]

ALPHA = 0.5
EVEN = 1e9  # largest alpha: draws are practically even; much larger ones break the sampling
CLIENTS = 10_000  # largest number of files in a folder
LABELS = 1_000  # distinct labels that are counted; more are numbers, not classes
AT_ONCE = 10_000  # rows written as text at once
_MASK = (1 << 64) - 1


class SplitInfo(msgspec.Struct, frozen=True):
    set: str
    rows: int
    test_rows: int
    shape: list[int]
    by: By
    alpha: float | None
    seed: int
    files: list[str]  # one file per client
    test: str
    sizes: list[int]  # rows of each client
    labels: list[float]  # empty if there are too many to count
    counts: list[list[int]]  # by client: the number of rows of each label
    notes: list[str]


def split(
    dataset: Dataset,
    clients: int,
    folder: Path,
    by: By = "even",
    alpha: float | None = None,
    seed: int = 0,
    draw: Callable[[SplitInfo, Path], None] | None = None,
) -> SplitInfo:
    """Write the folder, whole or not at all; ``draw`` adds split.png."""
    check_split(clients, by, alpha)
    if folder.exists() or folder.is_symlink():
        raise Invalid(f"{folder} is there already: take another folder (--out), or remove it")
    owner, notes = assign(dataset.train.labels, clients, by, ALPHA if alpha is None else alpha, seed)
    suffix = "npz" if dataset.dense else "svm"
    sizes, labels, counts = count(owner, dataset.train.labels, clients)
    said = SplitInfo(
        set=dataset.name,
        rows=dataset.train.rows,
        test_rows=dataset.test.rows,
        shape=list(dataset.shape),
        by=by,
        alpha=(ALPHA if alpha is None else alpha) if by == "dirichlet" else None,
        seed=seed,
        files=[f"client-{client}.{suffix}" for client in range(clients)],
        test=f"test.{suffix}",
        sizes=sizes,
        labels=labels,
        counts=counts,
        notes=notes,
    )
    with (
        or_refuse(f"write {folder}", "nothing was left there: take another folder (--out)"),
        StagingFolder(folder) as aside,
    ):
        aside.path.chmod(0o755)
        _write(dataset, said, owner, aside.path)
        if draw is not None:
            draw(said, aside.path / "split.png")
        replace_file(aside.path / "split.json", msgspec.json.format(msgspec.json.encode(said)) + b"\n")
        aside.settle()
    return said


def check_split(clients: int, by: By, alpha: float | None) -> None:
    if not 1 <= clients <= CLIENTS:
        raise Invalid(f"{clients:,} clients: 1 to {CLIENTS:,} are possible")
    if alpha is not None and by != "dirichlet":
        raise Invalid(f"alpha is for shares by chance: leave it out, or split with --by dirichlet (now: {by})")
    if alpha is not None and not 0 < alpha <= EVEN:
        raise Invalid(f"alpha = {alpha:g}: more than 0, at most {EVEN:g}; 0.1 is very uneven, 100 nearly even")


def assign(labels: Floats, clients: int, by: By, alpha: float, seed: int, who: str = "client") -> tuple[Ids, list[str]]:
    """The client of each row, and warnings; ``who`` is the word for a client."""
    rows = len(labels)
    if clients > rows:
        raise Invalid(f"{clients:,} {who}s and {rows:,} rows: no {who} may be without a row; take fewer {who}s")
    chance = np.random.Generator(np.random.PCG64(seed & _MASK))
    notes: list[str] = []
    match by:
        case "dirichlet":
            return _shares(labels, clients, alpha, chance, who)
        case "even":
            order = np.arange(rows)
        case "shuffled":
            order = chance.permutation(rows)
        case "label":
            order = np.argsort(labels, kind="stable")
    owner = np.empty(rows, np.int64)
    owner[order] = np.arange(rows) * clients // rows
    return owner, notes


def _shares(labels: Floats, clients: int, alpha: float, chance: np.random.Generator, who: str) -> tuple[Ids, list[str]]:
    values, which = np.unique(labels, return_inverse=True)
    if len(values) > LABELS:
        raise Invalid(f"{len(values):,} different labels are numbers, not classes: split by even, shuffled or label")
    owner = np.empty(len(labels), np.int64)
    for value in range(len(values)):
        mine = chance.permutation(np.flatnonzero(which == value))
        shares = chance.dirichlet(np.full(clients, alpha))
        # alpha is so small that all shares round to 0: one client takes all
        if not np.isfinite(shares).all():
            shares = np.eye(clients)[chance.integers(clients)]
        cuts = np.rint(np.cumsum(shares)[:-1] * len(mine)).astype(np.int64)
        owner[mine] = np.searchsorted(cuts, np.arange(len(mine)), side="right")
    return _none_empty(owner, clients, who)


def _none_empty(owner: Ids, clients: int, who: str) -> tuple[Ids, list[str]]:
    sizes = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    for client in empty:
        largest = int(sizes.argmax())
        owner[np.flatnonzero(owner == largest)[-1]] = client
        sizes[largest] -= 1
        sizes[client] += 1
    named = ", ".join(f"{who}-{client}" for client in empty[:5]) + ("..." if len(empty) > 5 else "")
    given = "was given one" if len(empty) == 1 else "were given one each"
    return owner, [f"{named} got no row by chance, and {given}, of the {who} that had most"] if len(empty) else []


def count(owner: Ids, labels: Floats, clients: int) -> tuple[list[int], list[float], list[list[int]]]:
    sizes = np.bincount(owner, minlength=clients).tolist()
    values, which = np.unique(labels, return_inverse=True)
    if len(values) > LABELS:
        return sizes, [], []
    table = np.bincount(owner * len(values) + which, minlength=clients * len(values)).reshape(clients, -1)
    return sizes, values.tolist(), table.tolist()


def _write(dataset: Dataset, said: SplitInfo, owner: Ids, folder: Path) -> None:
    order = np.argsort(owner, kind="stable")
    for name, rows in zip(said.files, np.split(order, np.cumsum(said.sizes)[:-1]), strict=True):
        _rows(dataset.train, rows, folder / name)
    _rows(dataset.test, np.arange(dataset.test.rows), folder / said.test)


def _rows(rows: CsrFile | DenseFile, which: npt.NDArray[Any], path: Path) -> None:
    if isinstance(rows, CsrFile):
        parts = (rows.take(which[first : first + AT_ONCE]) for first in range(0, len(which), AT_ONCE))
        write_text(parts, path)
        return
    taken, meta = rows.take(which), rows.meta
    facts = {"factor": np.array(meta.factor), "shift": np.array(meta.shift), "classes": np.array(meta.classes)}
    arrays: dict[str, Any] = {"x": taken.inputs, "y": taken.labels, **facts}
    np.savez(path, **arrays)
