"""Bad data is refused in one paragraph: the fact, then what to do next.

A refusal leaves nothing behind.

Each case goes through `shoal train` and through `shoal.train`, which say the same. Disks are
really filled: a small disk where this user may mount one, and a limit on the size of files
everywhere.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.data.csr_file import ASIDE
from shoal.data.datasets import Dataset, DataSource, load
from shoal.errors import Invalid

GOOD = [f"{(-1) ** n} {n % 20 + 1}:1 {n % 7 + 30}:0.5" for n in range(100)]
SETTINGS: dict[str, Any] = {"launch.how": "threads", "stop.epochs": 1.0}


@pytest.fixture(autouse=True)
def nothing_is_left(cache: Path, tmp_path: Path) -> Iterator[None]:
    """Check that no partial folder, thread or process is left and that the cache is valid."""
    threads = set(threading.enumerate())
    yield
    if cache.exists():
        for entry in cache.iterdir():
            assert ASIDE not in entry.name
            Dataset.open(entry)
    assert set(threading.enumerate()) <= threads
    assert multiprocessing.active_children() == []


def lines(*odd: str, at: int = 10) -> str:
    """Return a hundred good lines with odd ones inserted, the first as line ``at + 1``."""
    return "".join(f"{line}\n" for line in (*GOOD[:at], *odd, *GOOD[at:]))


def click_line(number: int, fields: int = 40) -> str:
    return "\t".join([str(number % 2), *[str(number)] * 13, *["0a"] * 30][:fields])


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def run_train(data: str | Path, out: Path, settings: dict[str, Any]) -> Result:
    changes = [f"--set={name}={value}" for name, value in {**SETTINGS, **settings}.items()]
    return CliRunner().invoke(main, ["train", str(data), "--out", str(out), *changes])


def refused(data: str | Path, out: Path, **settings: Any) -> str:
    """Return the error of the command, which is also the error of the function.

    Neither of them leaves a folder.
    """
    settings = {name.replace("__", "."): _plain(value) for name, value in settings.items()}
    ended = run_train(data, out, settings)
    assert ended.exit_code == 2, ended.output
    assert isinstance(ended.exception, SystemExit) and "Traceback" not in ended.output
    assert ended.stdout == ""
    _, _, said = ended.stderr.partition("Error: ")
    assert said.endswith("\n") and said.count("\n") == 1 and len(said) < 1_000
    assert not out.exists() and not out.parent.exists()
    with pytest.raises(Invalid) as caught:
        shoal.train(data, out=out, settings={**SETTINGS, **settings})
    assert str(caught.value) == said.strip()
    assert not out.exists() and not out.parent.exists()
    return said.strip()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def trained(data: str | Path, out: Path, **settings: Any) -> shoal.Run:
    ended = run_train(data, out, {name.replace("__", "."): value for name, value in settings.items()})
    assert ended.exit_code == 0, ended.output
    return shoal.Run.load(out)


# ---------------------------------------------------------------- lines


class Odd(NamedTuple):
    line: str
    fact: str
    move: str = "fix it, or skip such lines (--set data.bad_lines=N)"


ODD = {
    "a label that is text": Odd("cat 1:1", "label 'cat' is no number: cat 1:1"),
    "a line of CSV": Odd(
        "1,0.5,2", "label '1,0.5,2' is no number", "values between commas (CSV) are not read: write lines of LIBSVM"
    ),
    "a label that is NaN": Odd("nan 3:1", "'nan' is not finite, or too large"),
    "a label without bound": Odd("inf 3:1", "'inf' is not finite, or too large"),
    "a value that is NaN": Odd("1 3:nan", "'3:nan' is not finite, or too large"),
    "a value without bound": Odd("1 3:-inf", "'3:-inf' is not finite, or too large"),
    "id 0": Odd("1 0:1", "id 0, and ids start at 1", "add 1 to all ids of the file"),
    "a negative id": Odd("1 -3:1", "negative id in '-3:1'"),
    "an id past the limit": Odd("1 4294967296:1", "'4294967296:1' is above 4,294,967,295", "hash them with hash_bits"),
    "ids out of order": Odd("1 5:1 3:1", "the id of '3:1' is smaller than the one before"),
    "an id twice": Odd("1 5:1 5:1", "the id of '5:1' is given twice"),
    "an id alone": Odd("1 5", "'5' is no id:value"),
    "a million characters": Odd("1 " + "x" * 1_000_000, "' is no id:value: 1 xxxxxx"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_bad_line_is_named_and_nothing_is_kept(odd: Odd, tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "rows.svm", lines(odd.line))
    before = kept(cache)
    said = refused(path, tmp_path / "runs" / "run")
    assert said.startswith(f"{path}, line 11: ") and odd.fact in said
    assert said.endswith(odd.move) or odd.move in said.rpartition(";")[2]
    assert kept(cache) == before


def kept(cache: Path) -> set[str]:
    return {entry.name for entry in cache.iterdir()} if cache.exists() else set()


@pytest.mark.slow
def test_a_long_line_that_is_right_is_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.svm", lines("1 " + " ".join(f"{number}:1" for number in range(1, 150_000))))
    assert path.stat().st_size > 1_000_000
    assert trained(path, tmp_path / "run").model.features == 149_999  # type: ignore[union-attr]


def test_as_many_bad_lines_as_allowed_are_skipped_and_told(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.svm", lines("oops", "1 0:1", "1 2:x"))
    ended = run_train(path, tmp_path / "run", {"data.bad_lines": 3})
    assert ended.exit_code == 0
    assert "3 bad lines skipped: line 11: label 'oops' is no number: oops; line 12: id 0" in ended.stderr
    said = refused(path, tmp_path / "runs" / "again", data__bad_lines=2)
    assert said.startswith(f"{path}, line 13: '2:x' is no id:value: 1 2:x (2 bad lines were allowed); fix it")


@pytest.mark.parametrize("fields", [39, 41])
def test_a_click_log_with_a_column_too_few_or_too_many_is_named(fields: int, tmp_path: Path) -> None:
    rows = [*map(click_line, range(50)), click_line(1, fields)]
    path = write(tmp_path / "clicks.tsv", "\n".join(rows))
    said = refused(path, tmp_path / "runs" / "run")
    assert said.startswith(f"{path}, line 51: not 40 fields with tabs between: 1\\t1\\t")
    assert said.endswith("fix it, or skip such lines (--set data.bad_lines=N)")
    assert trained(path, tmp_path / "run", data__bad_lines=1).summary["examples"] > 0


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize("label", ["2", "0.5", "0"])  # the other labels are -1 and +1
def test_labels_of_more_than_two_classes_are_refused_and_a_model_of_numbers_takes_them(
    label: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.svm", lines(f"{label} 1:1"))
    said = refused(path, tmp_path / "runs" / "run")
    assert said.startswith(f"{path}, line 11: label {label}, and two classes are -1 and +1 or 0 and 1")
    assert said.endswith("choose model squared for numbers, or write other labels")
    assert trained(path, tmp_path / "run", model="squared").summary["test_loss"] > 0


def test_one_class_cannot_be_trained_on(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.svm", "1 1:1\n" * 50)
    said = refused(path, tmp_path / "runs" / "run")
    assert "labels are 1" in said and said.endswith("rows of both classes are needed to train")


def test_one_class_can_be_tested_on_and_what_is_not_defined_is_left_out(tmp_path: Path) -> None:
    path, test = write(tmp_path / "rows.svm", lines()), write(tmp_path / "test.svm", "1 1:1\n" * 5)
    ended = run_train(path, tmp_path / "run", {"data.test": test})
    assert ended.exit_code == 0 and "accuracy" in ended.stdout and "auc" not in ended.stdout
    assert shoal.Run.load(tmp_path / "run").summary["metrics"]["auc"] is None


# ---------------------------------------------------------------- files


def cut_gzip() -> bytes:
    return gzip.compress("".join(f"1 {n}:1\n" for n in range(1, 5_000)).encode())[:2_000]


def spoilt_gzip() -> bytes:
    whole = gzip.compress(lines().encode())
    return whole[:-8] + bytes(4) + whole[-4:]


FILES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "is empty", "rows are needed, one a line"),
    "blank": (b"\n\n# nothing\n   \n", "has no row", "rows are needed, one a line"),
    "binary": (b"\x7fELF\0\0\0" + bytes(range(256)), "is no text: byte 4 of it is zero", "give LIBSVM or Criteo lines"),
    "bytes": (
        bytes(range(128, 256)) * 20,
        "line 1: label '",
        "fix it, or skip such lines (--set data.bad_lines=N)",
    ),
    "zip": (b"PK\x03\x04" + bytes(50), "is a zip archive", "give plain text, .gz, .bz2 or .xz"),
    "cut": (cut_gzip(), "a compressed file, ends in the middle", "fetch it again"),
    "stub": (gzip.compress(b"1 1:1\n")[:5], "a compressed file, ends in the middle", "fetch it again"),
    "spoilt": (spoilt_gzip(), "a compressed file, is damaged (CRC check failed", "fetch it again"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("role", ["train", "test"])
def test_a_file_without_rows_says_what_it_is(name: str, role: str, tmp_path: Path, cache: Path) -> None:
    content, fact, move = FILES[name]
    bad, good = write(tmp_path / "bad", content), write(tmp_path / "good.svm", lines())
    before = kept(cache)
    settings = {} if role == "train" else {"data__test": bad}
    said = refused(bad if role == "train" else good, tmp_path / "runs" / "run", **settings)
    assert said.startswith(str(bad)) and fact in said
    assert said.endswith(move)
    assert kept(cache) == before


def test_what_is_no_file_says_so(tmp_path: Path) -> None:
    good, out = write(tmp_path / "good.svm", lines()), tmp_path / "runs" / "run"
    nowhere = tmp_path / "nowhere.svm"
    for said in (refused(nowhere, out), refused(good, out, data__test=nowhere)):
        assert said.startswith(f"no file '{nowhere}': ") and said.endswith("anything else is a path")
    for said in (refused(tmp_path, out), refused(good, out, data__test=tmp_path)):
        assert said == f"{tmp_path} is a folder: name a file in it"
    assert refused("rvc1", out) == "no file 'rvc1': did you mean rcv1?"
    long = refused("x" * 5_000, out)
    assert "File name too long" in long and long.endswith("give a path that can") and len(long) < 400
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe", out).endswith("write the rows to one first, they are read more than once")


def test_a_name_that_no_job_file_could_hold_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xffws.svm"))
    path.write_text(lines())
    said = refused(path, tmp_path / "runs" / "run")
    assert "r\\udcffws.svm' is not UTF-8" in said and said.endswith("rename it, or choose a UTF-8 locale")


def test_a_file_that_changes_while_it_is_packed_is_not_trained_on(tmp_path: Path, cache: Path) -> None:
    path, before = write(tmp_path / "rows.svm", lines()), kept(cache)

    def meddle(told: str) -> None:
        if told.endswith(" rows"):
            write(path, lines("1 1:1"))

    with pytest.raises(Invalid, match=r"rows\.svm was changed while it was read: load it again"):
        shoal.train(path, out=tmp_path / "runs" / "run", settings=SETTINGS, progress=meddle)
    assert not (tmp_path / "runs").exists() and kept(cache) == before


# ---------------------------------------------------------------- test sets that do not fit


def test_a_test_set_of_other_rows_is_refused_where_it_cannot_be_judged(tmp_path: Path) -> None:
    good, out = write(tmp_path / "good.svm", lines()), tmp_path / "runs" / "run"
    numbers = write(tmp_path / "numbers.svm", "3 1:1\n")
    said = refused(good, out, data__test=numbers)
    assert said.startswith(f"{numbers}, line 1: label 3, and two classes are") and "choose model squared" in said
    more = write(tmp_path / "more.svm", "1 1000:1\n-1 3:1\n")
    said = refused(good, out, data__test=more, data__features=100)
    assert said.startswith(f"{more}, line 1: id of '1000:1' is above 100") and said.endswith("hash them with hash_bits")
    clicks = write(tmp_path / "clicks.tsv", "\n".join(map(click_line, range(5))))
    said = refused(good, out, data__test=clicks)
    assert said.startswith(f"{clicks}, line 1: '0' is no id:value") and "fix it" in said


def test_a_test_set_may_have_features_of_its_own_and_the_other_way_to_write_classes(tmp_path: Path) -> None:
    good = write(tmp_path / "good.svm", lines())
    other = write(tmp_path / "other.svm", "1 1000:1\n0 3:1\n")
    run = trained(good, tmp_path / "run", data__test=other)
    assert run.model is not None and run.model.features == 1_000 and run.model.weights[999] == 0


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("setting", "value", "fact", "move"),
    [
        ("held_out", 1, "held_out = 1.0", "a share between 0 and 1 of the rows is needed to test on"),
        ("held_out", 0, "held_out = 0.0", "a share between 0 and 1 of the rows is needed to test on"),
        ("held_out", 1e-9, "none is held out to test on", "give a test set, or another share"),
        ("held_out", 0.999999, "none is left to train on", "give a test set, or another share"),
        ("batch", 0, "batch = 0", "a slot has 1 to 2^63 - 1 rows"),
        ("batch", 10**20, "batch = 1", "a slot has 1 to 2^63 - 1 rows"),
        ("batch", "many", "data.batch: Expected `int`, got `str`", "give a whole number"),
        ("features", 0, "features = 0", "at least 1, or leave it out"),
        ("features", -1, "features = -1", "at least 1, or leave it out"),
        ("features", 1 << 32, "features = 4,294,967,296: at most 4,294,967,295", "hash ids to fewer (hash_bits)"),
        ("features", 1.5, "data.features: Expected `int | null`, got `float`", "give a whole number or none"),
        ("features", 3, "id of '30:0.5' is above 3", "hash them with hash_bits"),
        ("hash_bits", 0, "hash_bits = 0", "1 to 31 (click logs: 20 if not given)"),
        ("hash_bits", 64, "hash_bits = 64", "1 to 31 (click logs: 20 if not given)"),
        ("rows", -4, "rows = -4", "at least 1, or leave it out for all"),
        ("rows", 1, "has 1 rows, and with held_out = 0.1 none is held out", "give a test set, or another share"),
        ("bad_lines", -1, "bad_lines = -1", "0 or more may be skipped"),
        ("format", "csv", "data.format: Invalid enum value 'csv'", "(there are auto, libsvm, criteo)"),
        ("format", "criteo", "line 1: not 40 fields", "fix it, or skip such lines (--set data.bad_lines=N)"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    setting: str, value: Any, fact: str, move: str, tmp_path: Path, cache: Path
) -> None:
    path, before = write(tmp_path / "rows.svm", lines()), kept(cache)
    said = refused(path, tmp_path / "runs" / "run", **{f"data__{setting}": value})
    assert fact in said
    assert said.endswith(move)
    assert kept(cache) == before


def test_features_and_hash_bits_exclude_each_other(tmp_path: Path) -> None:
    path, out = write(tmp_path / "rows.svm", lines()), tmp_path / "runs" / "run"
    assert refused(path, out, data__features=50, data__hash_bits=4).endswith("leave one out")
    clicks = write(tmp_path / "clicks.tsv", "\n".join(map(click_line, range(50))))
    assert refused(clicks, out, data__features=50).endswith("say hash_bits instead of features")


@pytest.mark.parametrize("batch", [101, 1 << 62])
def test_a_batch_larger_than_the_set_is_the_whole_set(batch: int, tmp_path: Path) -> None:
    run = trained(write(tmp_path / "rows.svm", lines()), tmp_path / "run", data__batch=batch)
    assert run.summary["steps"] == 1 and 80 < run.summary["examples"] < 100


def test_a_stray_id_that_makes_a_model_too_large_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    path = write(tmp_path / "rows.svm", lines("1 50000000:1"))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Small", (), {"available": 256 << 20}))
    said = refused(path, tmp_path / "runs" / "run")
    assert said.startswith("rows.svm has 50,000,000 features, and to evaluate and save a model of them takes 572 MB")
    assert "256 MB are free" in said and said.endswith("hash the ids to fewer (--set data.hash_bits=20)")


# ---------------------------------------------------------------- paths and permissions


def test_a_named_set_without_its_files_says_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    said = refused("a9a", tmp_path / "runs" / "run")
    assert said == "a9a is read from files: put a9a/a9a.xz into a folder and name it in SHOAL_DATA"
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "elsewhere"))
    said = refused("a9a", tmp_path / "runs" / "run")
    assert said.startswith(f"a9a needs {tmp_path}/elsewhere/a9a/a9a.xz, which is not there")
    assert said.endswith("put it there, or point SHOAL_DATA elsewhere")


def mortal() -> list[str]:
    """Return a command prefix that makes permissions hold for root too."""
    if os.geteuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("root may read everything, and there is no setpriv to give that up")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


def shoal_train(*arguments: str | Path, before: list[str] | None = None, **environment: Any) -> Any:
    """Run `shoal train` in a process with its own permissions and limits."""
    command = [*(before or []), sys.executable, "-m", "shoal", "train", *map(str, arguments)]
    changes = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return subprocess.run([*command, *changes], capture_output=True, text=True, timeout=120, env=variables)


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.svm", lines())
    path.chmod(0)
    ended = shoal_train(path, "--out", tmp_path / "runs" / "run", before=mortal())
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stderr.endswith(f"Error: {path} cannot be read: Permission denied: give a file that can\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_without_a_cache_that_can_be_written_training_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    closed, spare = tmp_path / "closed", tmp_path / "spare"
    closed.mkdir(mode=0o500)
    spare.mkdir()
    path = write(tmp_path / "rows.svm", lines())
    ended = shoal_train(path, "--out", tmp_path / "run", before=mortal(), SHOAL_CACHE=closed, TMPDIR=spare)
    assert ended.returncode == 0, ended.stderr
    assert list(closed.iterdir()) == [] == list(spare.iterdir())
    assert shoal.Run.load(tmp_path / "run").model is not None


# ---------------------------------------------------------------- compressed files

MEASURED = """
import sys
from pathlib import Path
from shoal.cli.main import main
try:
    main(["train", *sys.argv[1:]], prog_name="shoal")
finally:  # not ru_maxrss: that begins with what our parent had
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) >> 10)
"""


@pytest.mark.variants(slow=["rows", "blank lines"])
@pytest.mark.parametrize("line", [b"1 1:1\n", b"\n", b"1"], ids=["rows", "blank lines", "one line without an end"])
def test_a_few_megabytes_that_grow_to_gigabytes_are_refused_and_take_no_memory(line: bytes, tmp_path: Path) -> None:
    unit = gzip.compress(line * ((16 << 20) // len(line)))
    path = write(tmp_path / "bomb.gz", unit * 400)
    assert path.stat().st_size < 20 << 20  # 6.7 GB unpacked
    out = tmp_path / "runs" / "run"
    command = [sys.executable, "-c", MEASURED, str(path), "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    assert f"Error: {path} has grown to " in ended.stderr
    assert ended.stderr.endswith("as no text does: if it is what you want, unpack it first\n")
    peak = int(ended.stdout)
    print(f"{peak} MB at most")
    assert peak < 600  # numba alone takes 200
    assert not out.parent.exists()


# ---------------------------------------------------------------- full disks

LIMITED = """
import json, resource, sys
sys.dont_write_bytecode = True  # what did not fit of it nobody would notice, and all who import it later would die of it
from pathlib import Path
import shoal
from shoal.errors import Invalid, RunFailed
from shoal.events import Started
path, out, most, when = sys.argv[1:]

def limit(event=None):
    if event is None or isinstance(event, Started):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), int(most)))

if when == "before":
    limit()
try:
    run = shoal.train(path, out=out, epochs=2, settings={"launch.how": "threads", "timing.journal": 1.0}, on_event=limit)
    facts = {"folder": str(run.folder), "why": ""}
except (Invalid, RunFailed) as error:
    run = getattr(error, "run", None)
    facts = {"kind": type(error).__name__, "why": str(error)}
if run is not None:
    facts |= {"loss": run.summary["test_loss"], "stopped": run.summary["stopped_because"]}
    facts |= {"learned": run.model.nonzeros, "at": str(run.folder)}
print(json.dumps(facts))
"""


class Ended(NamedTuple):
    facts: dict[str, Any]
    errors: str
    spare: Path


@pytest.fixture
def limited(tmp_path: Path) -> Any:
    """Return a function that trains under a limit on the size of files.

    The limit holds from the start, or once training has begun.
    """
    path, spare = write(tmp_path / "rows.svm", lines()), tmp_path / "spare"
    spare.mkdir()
    # The rows are packed already, so only the run folder exceeds the limit.
    load(DataSource(str(path)), 0)

    def run(most: int, when: str) -> Ended:
        command = [sys.executable, "-c", LIMITED, str(path), str(tmp_path / "runs" / "run"), str(most), when]
        environment = {**os.environ, "TMPDIR": str(spare)}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert ended.returncode == 0, ended.stderr
        return Ended(json.loads(ended.stdout), ended.stderr, spare)

    return run


@pytest.mark.slow
def test_a_run_that_can_be_saved_nowhere_is_in_the_error_and_training_went_on(limited: Any, tmp_path: Path) -> None:
    ended = limited(200, "started")
    assert ended.facts["kind"] == "RunFailed" and ended.facts["stopped"] == "2 epochs done"
    assert f"cannot write to {tmp_path}/runs/run (File too large), nor to {ended.spare}" in ended.facts["why"]
    assert ended.facts["why"].endswith("the model is in memory only, as error.run.model; make room and save it")
    assert ended.facts["learned"] > 0 and ended.facts["at"] == "None"
    assert list(ended.spare.iterdir()) == []  # no partial file
    assert "Traceback" not in ended.errors


@pytest.mark.slow
def test_not_even_a_temporary_folder_still_ends_with_the_model_in_the_error(limited: Any) -> None:
    ended = limited(0, "started")
    assert ended.facts["kind"] == "RunFailed" and "nor to a temporary folder" in ended.facts["why"]
    assert ended.facts["learned"] > 0


@pytest.mark.slow
def test_a_picture_that_does_not_fit_costs_the_picture_only(limited: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ended = limited(16_000, "before")
    assert ended.facts["folder"] == str(tmp_path / "runs" / "run")
    assert "shoal: no loss.png: " in ended.errors and "File too large" in ended.errors
    run = shoal.Run.load(tmp_path / "runs" / "run")
    assert run.model is not None and run.summary["test_loss"] == ended.facts["loss"]
    assert not list(run.folder.glob("*loss.png*"))  # type: ignore[union-attr]


@pytest.mark.parametrize("most", [0, 300])
def test_a_run_folder_that_cannot_be_begun_is_refused_and_not_left(most: int, limited: Any, tmp_path: Path) -> None:
    ended = limited(most, "before")
    assert ended.facts["kind"] == "Invalid"
    assert ended.facts["why"] == f"cannot write to {tmp_path}/runs/run: File too large: choose another folder (--out)"
    assert not (tmp_path / "runs").exists()


FILLED = """
import contextlib, json, os, sys
from pathlib import Path
import shoal
from shoal.events import Evaluated, Started, Stopped
path, disk = Path(sys.argv[1]), Path(sys.argv[2])

def fill(leave=0):
    with open(disk / "filler", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - leave)

def train(name, leave, when):
    def heard(event):
        if isinstance(event, when):
            fill()
    if when is None:
        fill(leave)
    try:
        settings = {"launch.how": "threads", "timing.journal": 1.0}
        run = shoal.train(path, out=disk / name, epochs=3, settings=settings, on_event=heard if when else None)
        facts = {"folder": str(run.folder), "loss": run.summary["test_loss"], "learned": run.model.nonzeros}
    except shoal.ShoalError as error:
        facts = {"kind": type(error).__name__, "why": str(error)}
    facts |= {"left": sorted(os.listdir(disk / name)) if (disk / name).exists() else None}
    os.unlink(disk / "filler")
    return facts

told = {
    "no room": train("a", 0, None),
    "a little room": train("b", 8192, None),
    "full at the start": train("c", 0, Started),
    "full in the middle": train("d", 0, Evaluated),
    "full at the end": train("e", 0, Stopped),
}
print(json.dumps(told))
"""


def on_a_small_disk(disk: Path, spare: Path, code: str, *words: Path) -> subprocess.CompletedProcess[str]:
    """Run this code where ``disk`` has 64 KB, and temporary files go to ``spare``."""
    for folder in (disk, spare):
        folder.mkdir()
    mount = f"mount -t tmpfs -o size=64k none {disk}"
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    command = [*alone, f'{mount} && exec "$@"', "sh", sys.executable, "-c", code, *map(str, words)]
    environment = {**os.environ, "TMPDIR": str(spare)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_no_run(tmp_path: Path) -> None:
    disk, spare, path = tmp_path / "disk", tmp_path / "spare", write(tmp_path / "rows.svm", lines())
    ended = on_a_small_disk(disk, spare, FILLED, path, disk)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    told = json.loads(ended.stdout)
    for when, why in (
        ("no room", f"cannot write to {disk}/a: No space left on device: choose another folder (--out)"),
        (
            "a little room",
            f"cannot open the journal {disk}/b/coordinator.journal: No space left on device: choose another",
        ),
    ):
        assert (told[when]["kind"], told[when]["left"]) == ("Invalid", None)
        assert told[when]["why"].startswith(why)
    for name, when in (("c", "full at the start"), ("d", "full in the middle"), ("e", "full at the end")):
        saved = Path(told[when]["folder"])
        line = f"shoal: cannot write to {disk}/{name} (No space left on device): the run is in {saved}\n"
        assert saved.parent == spare and line in ended.stderr
        run = shoal.Run.load(saved)
        assert run.summary["test_loss"] == told[when]["loss"] and run.summary["stopped_because"] == "3 epochs done"
        assert run.model is not None and run.model.nonzeros == told[when]["learned"] > 0
        assert [type(event).__name__ for event in run.events].count("Stopped") == 1
        assert "summary.json" not in told[when]["left"]  # a folder with a summary is complete


def test_a_full_disk_is_no_success_for_a_script(tmp_path: Path) -> None:
    """The run is saved elsewhere, and the exit code says that it is not in its folder."""
    disk, spare, path = tmp_path / "disk", tmp_path / "spare", write(tmp_path / "rows.svm", lines())
    ended = on_a_small_disk(disk, spare, FILLED_BY_COMMAND, disk, path)
    assert ended.returncode == 1, (ended.stdout, ended.stderr)
    (saved,) = spare.glob("run-*")
    last = ended.stderr.strip().splitlines()[-1]
    said = f"cannot write to {disk}/run (No space left on device): the run is in {saved}: make room, and move it there"
    assert last == f"Error: {said}"
    assert shoal.Run.load(saved).summary["stopped_because"] == "1 epoch done"
    assert json.loads(ended.stdout)["folder"] == str(saved)


FILLED_BY_COMMAND = """
import contextlib, sys
from pathlib import Path
from shoal.run import folder
from shoal.cli.main import main
disk, path = Path(sys.argv[1]), sys.argv[2]
whole = folder.RunFolder.save

def save(self, run):
    with open(disk / "filler", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass
    return whole(self, run)

folder.RunFolder.save = save  # the disk is full just when it is written
main(["train", path, "--epochs", "1", "--on", "threads", "--json", "--out", str(disk / "run")])
"""


def test_events_that_cannot_be_written_do_not_stop_a_run_and_are_there_at_the_end(tmp_path: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("there is no /dev/full here")
    path, out = write(tmp_path / "rows.svm", lines()), tmp_path / "run"
    sent: list[str] = []

    def heard(event: Any) -> None:
        # From the second event on, the file is on a full device.
        if not sent:
            (out / "full").symlink_to("/dev/full")
            os.replace(out / "full", out / "events.jsonl")
        sent.append(type(event).__name__)

    run = shoal.train(path, out=out, epochs=3, settings={"launch.how": "threads"}, on_event=heard)
    assert run.folder == out and not (out / "events.jsonl").is_symlink()
    assert [type(event).__name__ for event in shoal.Run.load(out).events] == sent
    assert Path("/dev/full").is_char_device()  # only the link was replaced


PACKED = """
import resource, sys
sys.dont_write_bytecode = True
from shoal.cli.main import main
from shoal.data import kernels
from shoal.data import synthetic_kernels as draw
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
main(["train", "clicks", "--set", "data.rows=50000", "--out", sys.argv[1]], prog_name="shoal")
"""


def test_a_disk_too_small_for_the_packed_rows_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    own = tmp_path / "cache"
    command = [sys.executable, "-c", PACKED, str(tmp_path / "runs" / "run")]
    environment = {**os.environ, "SHOAL_CACHE": str(own)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    assert f"Error: cannot pack clicks into {own}/data: File too large: nothing was left there" in ended.stderr
    assert ended.stderr.endswith("make room, or point SHOAL_CACHE elsewhere\n")
    assert list((own / "data").iterdir()) == [] and not (tmp_path / "runs").exists()


# ---------------------------------------------------------------- run folders


def test_what_is_in_a_folder_already_is_not_written_over(tmp_path: Path) -> None:
    path, out = write(tmp_path / "rows.svm", lines()), tmp_path / "mine"
    out.mkdir()
    for name in ("summary.json", "model.safetensors", "events.jsonl"):
        write(out / name, "mine")
        with pytest.raises(Invalid, match=f"has {name} in it already: choose another folder, or remove it"):
            shoal.train(path, out=out, settings=SETTINGS)
        assert [one.name for one in out.iterdir()] == [name] and (out / name).read_text() == "mine"
        (out / name).unlink()


def test_a_run_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.svm", lines())
    for out, why in (("x" * 300, "File name too long"), ("rows.svm/run", "Not a directory")):
        ended = run_train(path, tmp_path / out, {})
        assert ended.exit_code == 2 and isinstance(ended.exception, SystemExit)
        assert f"{why}: choose another folder (--out)" in ended.stderr
    assert path.read_text() == lines()
