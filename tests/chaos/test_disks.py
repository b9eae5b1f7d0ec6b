"""Disks under a journal or under checkpoints stall, fail or refuse writes (F32).

They are real file systems of a few megabytes. What needs the disk waits, or is refused with the
reason; requests to the servers go on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.errors import ShoalError
from shoal.events import RunEvent, Saved, Warned, read_run
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from tests.support import PATIENCE
from tests.support.disks import Volume, missing
from tests.support.sandbox import Den, soon


@pytest.fixture
def volume() -> Iterator[Volume]:
    if why := missing():
        pytest.skip(why)
    with Volume() as volume:
        yield volume


@pytest.fixture
def cluster(volume: Volume) -> Iterator[ProcessCluster]:
    """Yields a cluster that has its journal, and nothing else, on that disk."""
    with shoal.local(servers=2, copies=2, processes=True, folder=volume.folder) as cluster:
        assert isinstance(cluster, ProcessCluster)
        yield cluster
        volume.__exit__()  # thaws it, before the cluster waits for its processes


# ---------------------------------------------------------------- under the journal


@pytest.mark.soak
def test_pushes_go_on_while_the_disk_under_the_journal_stalls_and_nobody_is_removed(
    cluster: ProcessCluster, volume: Volume
) -> None:
    """The disk stalls for longer than a member may be silent.

    The coordinator, which waits for its disk, receives no messages meanwhile.
    """
    with cluster.client("ann") as ann:
        ann.create("w", shoal.Dense(rows=1))
        before = cluster.look().members
        volume.freeze()
        with pytest.raises(ShoalError) as waited:  # the coordinator does not answer in time
            ann.create("other", shoal.Dense(rows=1))
        for _ in range(20):
            ann.push("w", [0], [1.0]).result(PATIENCE)
        volume.thaw()
        assert "coordinator" in str(waited.value)
        assert list(ann.pull("w", [0]).result(PATIENCE)) == [20.0]
        after = cluster.look(PATIENCE).members
        assert [(one.name, one.incarnation) for one in before] == [(one.name, one.incarnation) for one in after]
        assert soon(lambda: "other" in ann.tables())  # the journal has it in the end


def test_pushes_go_on_when_the_disk_under_the_journal_fails_and_whoever_needs_it_is_told(
    cluster: ProcessCluster, volume: Volume
) -> None:
    pids = cluster.pids
    with cluster.client("ann") as ann:
        ann.create("w", shoal.Dense(rows=1))
        volume.fail()
        for _ in range(2):  # the second time is like the first
            with pytest.raises(ShoalError, match="journal cannot be written"):
                ann.create("other", shoal.Dense(rows=1))
        for _ in range(5):
            ann.push("w", [0], [1.0]).result(PATIENCE)
        assert list(ann.pull("w", [0]).result(PATIENCE)) == [5.0]
    assert cluster.pids == pids  # no process ended


def test_a_journal_refuses_until_what_it_refused_is_cut_off(volume: Volume) -> None:
    """A refused record must not come back after a restart, nor hide later records."""
    path = volume.folder / "journal"
    journal = JournalFile(path)
    assert journal.append(b"first") == ""
    volume.fail()
    assert journal.append(b"second") != ""
    assert journal.append(b"third") != ""
    journal.close()


def test_a_record_that_could_not_be_synced_nor_cut_off_is_cut_off_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise OSError(5, "input/output error")

    journal = JournalFile(tmp_path / "journal")
    assert journal.append(b"first") == ""
    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", broken)
        disk.setattr("os.ftruncate", broken)
        assert journal.append(b"second, which stands in the file") == "input/output error"
        assert journal.append(b"third") == "input/output error"
    assert journal.append(b"fourth") == ""
    journal.close()
    assert JournalFile(tmp_path / "journal").records == [b"first", b"fourth"]


# ---------------------------------------------------------------- under the checkpoints


def events(run: Path) -> list[RunEvent]:
    try:
        return read_run(run / "events.jsonl")
    except FileNotFoundError:
        return []


def saved(run: Path) -> int:
    return sum(isinstance(event, Saved) for event in events(run))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["read only", pytest.param("stalled", marks=pytest.mark.soak)])
def test_a_run_goes_on_while_its_checkpoints_cannot_be_written_and_writes_them_when_they_can(
    how: str, den: Den, tmp_path: Path
) -> None:
    if why := missing():
        pytest.skip(why)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    settings = {
        "data.rows": 6_000,
        "data.features": 3_000,
        "data.batch": 20,
        "stop.seconds": 10_000,
        "evaluate.every": 10,
        "checkpoint.every": 0.2,
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with Volume(run / "checkpoints") as volume:
        process = den.start(
            "-m", "shoal", "train", "rcv1-like", "--servers", "2", "--workers", "1", *flags, "--out", str(run)
        )
        assert soon(lambda: saved(run) >= 1 or process.poll() is not None)
        (volume.read_only if how == "read only" else volume.freeze)()
        kept, steps = saved(run), _steps(run)
        # Pushes and pulls go on.
        assert soon(lambda: _steps(run) > steps + 200 or process.poll() is not None)
        if how == "read only":
            assert soon(lambda: any("Read-only file system" in one.what for one in _warnings(run)))
        (volume.writable if how == "read only" else volume.thaw)()
        assert soon(lambda: saved(run) > kept), events(run)[-3:]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, errors
    print([one.what for one in _warnings(run)])


def _warnings(run: Path) -> list[Warned]:
    return [event for event in events(run) if isinstance(event, Warned)]


def _steps(run: Path) -> int:
    return max((getattr(event, "steps", 0) for event in events(run)), default=0)
