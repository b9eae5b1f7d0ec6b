"""Embeddings whose rows are on the servers; a worker holds the rows of its batch.

    forward     one pull for the distinct ids of the batch; torch's own kernels do the rest
    backward    one push of the summed gradient of each distinct id; the server runs the update

The table is asynchronous, whatever the rest of the model is: no worker waits for rows, and a
worker reads its own pushes. Without gradients (``eval()``, ``no_grad``) nothing is pushed. A row
is created by its first push; before that it reads as its initial value, which depends on its id.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn import functional

from shoal.client import KV
from shoal.cluster.placement import segments_of
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.files import Disk
from shoal.keys import Keys, KeyValues, Values, as_keys, as_values, mixed
from shoal.launch.cluster import Cluster
from shoal.launch.local import local
from shoal.store.checkpoint import manifest as checkpoint
from shoal.store.checkpoint.segment_file import write_segment
from shoal.store.client.task import Task
from shoal.store.table.table import SegmentImage
from shoal.store.table.update import AdaGrad, rule_named
from shoal.tables import Initial, Normal, Sparse, Update, checked
from shoal.torch.rank import Place, call_at_exit, ensure
from shoal.wire.messages.replication import SegmentBooks

Kept = tuple[torch.Tensor, torch.Tensor]  # ids, and a row of values for each


class Embedding(torch.nn.Module):
    """One row for each id. ``num_embeddings`` None: any ids below 2^63, hashed.

    ``state_dict`` does not contain the rows. Save and load them, the same in all workers, by

        torch.save(model.ads.all_rows(), "ads.pt")
        Embedding(..., start=torch.load("ads.pt"))
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        *,
        name: str,
        update: Update | None = None,
        initial: Initial | None = None,
        start: Kept | None = None,
        kv: KV | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.name = num_embeddings, embedding_dim, name
        self._kv = kv if kv is not None else _connection()
        self._pushes: list[Task] = []
        self._told = False  # whether the warning about state_dict was given
        spec = Sparse(
            keys=num_embeddings,
            hashed=num_embeddings is None,
            width=embedding_dim,
            update=update if update is not None else AdaGrad(step=0.05),
            initial=initial if initial is not None else Normal(deviation=0.01),
        )
        there = ensure(self._kv, name, spec, None if start is None else lambda: _create(self._kv, name, spec, start))
        if (mine := msgspec.to_builtins(spec)) != (theirs := msgspec.to_builtins(there)):
            field = next(field for field in mine if mine[field] != theirs.get(field))
            raise Invalid(
                f"table {name!r} is there with {field}={theirs.get(field)}, and this one has {mine[field]}: give all "
                "workers the same settings, or this one another name="
            )
        call_at_exit(self.flush)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        weights, places = self._pulled(ids)
        return functional.embedding(places.view(ids.shape), weights)

    def rows(self, ids: Any) -> Values:
        """The current rows of these ids."""
        self.flush()
        found: Values = self._kv.pull(self.name, np.asarray(ids).reshape(-1)).result()
        return found.reshape(-1, self.embedding_dim)

    def all_rows(self) -> Kept:
        """All ids with a push and their current rows: two CPU tensors, sorted by id."""
        self.flush()
        found: KeyValues = self._kv.pull(self.name, slice(None), exact=True).result()
        keys = np.asarray(found.keys)
        order = np.argsort(keys)
        return torch.from_numpy(keys[order].astype(np.int64)), torch.from_numpy(found.values[order])

    def _save_to_state_dict(self, *arguments: Any, **settings: Any) -> None:
        super()._save_to_state_dict(*arguments, **settings)
        if not self._told:
            self._told = True
            what = f"the rows of {self.name!r} are on the servers and not in this state_dict: save its all_rows(), too"
            print(f"shoal: {what}", file=sys.stderr)

    def flush(self) -> None:
        """Wait until all pushes are counted."""
        pushes, self._pushes = self._pushes, []
        self._kv.wait(pushes)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings or 'hashed'}, {self.embedding_dim}, name={self.name!r}"

    def _pulled(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of the distinct ids, and the index of every id among them."""
        if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise Invalid(f"ids are {ids.dtype}: whole numbers are needed")
        keys, places = np.unique(ids.detach().cpu().numpy().reshape(-1), return_inverse=True)
        rows = torch.zeros(max(1, len(keys)), self.embedding_dim)
        rows.numpy()[: len(keys)] = self.rows(keys)
        rows = rows.to(ids.device)
        if torch.is_grad_enabled() and len(keys):
            rows.requires_grad_()
            if self.training:
                rows.register_post_accumulate_grad_hook(lambda leaf: self._push(keys, leaf))
        return rows, torch.from_numpy(places.reshape(-1)).to(ids.device)

    def _push(self, keys: Keys, rows: torch.Tensor) -> None:
        assert rows.grad is not None
        gradient = rows.grad.detach().to("cpu", torch.float32).numpy()
        rows.grad = None  # a second backward through the same batch pushes only what it adds
        try:
            self._pushes.append(self._kv.push(self.name, keys, gradient))
        except BadValues:
            raise BadValues(
                f"the gradient of {self.name!r} is not finite (NaN or infinite): nothing was sent; take a smaller step, "
                "or look at the loss"
            ) from None


class EmbeddingBag(Embedding):
    """The sum or mean of each bag's rows: ids of shape (bags, ids), or flat with ``offsets``."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        mode: str = "mean",
        *,
        name: str,
        update: Update | None = None,
        initial: Initial | None = None,
        start: Kept | None = None,
        kv: KV | None = None,
    ) -> None:
        if mode not in ("sum", "mean"):
            raise Invalid(f"mode={mode!r}: needs 'sum' or 'mean'")
        super().__init__(num_embeddings, embedding_dim, name=name, update=update, initial=initial, start=start, kv=kv)
        self.mode = mode

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        weights, places = self._pulled(ids)
        shaped = places.view(ids.shape)
        bags: torch.Tensor = functional.embedding_bag(
            shaped, weights, offsets, mode=self.mode, per_sample_weights=per_sample_weights
        )
        return bags


_lock = threading.Lock()
_shared: list[KV] = []
_private: list[Cluster] = []


def _connection() -> KV:
    """This process's client: of the launcher's cluster, or else of a private one."""
    with _lock:
        if not _shared or _shared[0].closed:
            place = Place.here()
            if place is not None:
                _shared[:] = [place.join("client", f"{place.name}-rows")]
            else:
                print(
                    "shoal: no servers here, so rows are kept in this process; with them: shoal launch ...",
                    file=sys.stderr,
                )
                _private[:] = [local(servers=1)]
                _shared[:] = [_private[0].client()]
        return _shared[0]


def _create(kv: KV, name: str, spec: Sparse, start: Kept) -> None:
    """Create the table with these rows; returns when every server has read its own."""
    ids, values = (torch.as_tensor(one).detach().cpu() for one in start)
    keys = as_keys(ids.numpy())
    rows = as_values(values.float().numpy(), len(keys), spec.width)
    if len(keys) and int(keys.max()) >= spec.span:
        raise BadKeys(f"id {keys.max()} of {name!r}: its ids are 0 to {spec.span - 1}")
    keys = mixed(keys) if spec.hashed else keys
    order = np.argsort(keys)
    keys = keys[order]
    if (keys[1:] == keys[:-1]).any():
        raise BadKeys(f"some ids of {name!r} are given twice: give each id one row")
    state = np.zeros((len(rows), spec.width * rule_named(spec.update.name).state), np.float32)
    whole = np.hstack([rows[order], state])
    ranges = segments_of(spec, max(1, sum(member.startswith("server") for member in kv.members)))
    starts = [one.start for one in ranges]
    ends = np.searchsorted(keys, np.array([*starts[1:], spec.span], np.uint64))
    with tempfile.TemporaryDirectory(prefix="shoal-rows-") as place:
        disk, root, written, at = Disk(), Path(place), [], 0
        number = checkpoint.prepare(disk, root)
        folder = checkpoint.folder_of(root, number)
        for segment, (held, end) in enumerate(zip(ranges, ends.tolist(), strict=True)):
            image = SegmentImage(segment, held, SegmentBooks(0), whole[at:end], keys[at:end])
            written.append(write_segment(disk, folder, name, 0, image))
            at = end
        tables = [checkpoint.SavedTable(0, name, checked(spec), starts)]
        manifest = checkpoint.Manifest(number=number, generation=0, job="", steps=0, tables=tables, segments=written)
        checkpoint.finish(disk, folder, manifest)
        kv.create(name, spec, starts, str(folder))
