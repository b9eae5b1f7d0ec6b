"""Restores a store from its folder: the tables and rows as ``kv.save()`` left them.

    FOLDER/coordinator.journal      counters that never decrease
    FOLDER/checkpoints/             what was saved
    FOLDER/lock                     held while the store is open

Servers read their segments from the newest complete checkpoint: weights, optimizer state, ledgers.
The ledgers list pushes of earlier clients by incarnation, so no new client may get one of these
numbers: if the journal is gone, its counters are taken from the checkpoint. Tables of worker groups
are not included: their runs have their own checkpoints.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import Invalid
from shoal.files import Disk, Lock, or_refuse
from shoal.nodes.checkpointing import BareStore
from shoal.nodes.membership_journal import MembershipRecord, split
from shoal.store.checkpoint import manifest as checkpoint

if TYPE_CHECKING:
    from shoal.client import KV
    from shoal.launch.cluster import Cluster


@dataclass(frozen=True, slots=True)
class SavedStore:
    folder: Path
    manifest: checkpoint.Manifest

    def is_here(self, kv: KV) -> bool:
        here = kv.tables()
        return all(one.name in here and not _is_lost(kv, one.name) for one in self.manifest.tables)

    def restore(self, kv: KV) -> list[str]:
        """Create the tables that are missing or have lost segments; returns their names."""
        here, made = kv.tables(), []
        cut: dict[tuple[object, ...], str] = {}  # tables with equal segments are placed alike
        for table in self.manifest.tables:
            key = (table.spec.span, table.spec.hashed, *table.starts)
            if table.name in here and not _is_lost(kv, table.name):
                cut.setdefault(key, table.name)
                continue
            if table.name in here:
                kv.drop(table.name)
            like = cut.get(key, "")
            kv.create(table.name, table.spec, () if like else table.starts, str(self.folder), like)
            cut.setdefault(key, table.name)
            made.append(table.name)
        return made


def lock_folder(folder: Path, named: str) -> Lock:
    """Create and lock the folder of a store. ``named`` is the option, for error messages."""
    if (folder / "job.toml").exists():  # checked before anything is written: the run may be active
        raise Invalid(f"{folder} is the folder of a run, not of a store: choose another ({named})")
    with or_refuse(f"write to {folder}", f"choose another folder ({named})"):
        folder.mkdir(parents=True, exist_ok=True)
        return Lock(folder.absolute(), folder, "store")


def saved_in(cluster: Cluster, folder: Path) -> SavedStore | None:
    """Let the cluster save there, and return what was saved there before. Before the start."""
    root = cluster.checkpoints = folder.absolute() / "checkpoints"
    found, refused = checkpoint.newest(Disk(), root, "") if root.is_dir() else (None, [])
    if found is None:
        if refused:
            raise Invalid(f"no checkpoint in {root} can be read: {refused[0]}: repair it, or move all of them away")
        return None
    for one in refused:
        print(f"shoal: skipped a checkpoint: {one}", file=sys.stderr)
    path, manifest = found
    state = msgspec.json.decode(manifest.state, type=BareStore)
    kept = split(cluster._journal.records)[0] or MembershipRecord(0, 0, 0, 0, 0)
    if kept.incarnations < state.incarnations:  # the journal is not the one of the checkpoint
        cluster.begin_with(msgspec.msgpack.encode(msgspec.structs.replace(kept, incarnations=state.incarnations)))
    return SavedStore(path, manifest)


def _is_lost(kv: KV, name: str) -> bool:
    placed = next(one for one in kv._client.session.view.tables if one.name == name)
    return not all(place.servers for place in placed.places)
