"""`shoal export` of real runs: what the archive contains, and how it is uploaded.

The uploads go to a web server on this machine.
"""

from __future__ import annotations

import csv
import hashlib
import http.server
import io
import os
import shutil
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main

ROWS = "".join(f"{(-1) ** n} {n % 20 + 1}:1 {n % 7 + 30}:0.5\n" for n in range(400))
Handler = http.server.BaseHTTPRequestHandler


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    home = tmp_path_factory.mktemp("runs")
    (home / "rows.svm").write_text(ROWS)
    settings = {"data.batch": 10, "evaluate.every": 0.5, "launch.how": "threads"}
    shoal.train(home / "rows.svm", workers=2, epochs=2, out=home / "one", settings=settings)
    return home / "one"


def call(*arguments: str | Path) -> Result:
    ended = CliRunner().invoke(main, ["export", *map(str, arguments)], prog_name="shoal")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended


def refused(*arguments: str | Path) -> str:
    ended = call(*arguments)
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.output
    return ended.stderr.partition("Error: ")[2].strip()


def contents(archive: Path) -> dict[str, bytes]:
    """Return the files of an archive by name; each is a plain file without an owner."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            assert member.isreg() and not member.name.startswith(("/", ".")) and ".." not in member.name
            assert (member.uid, member.gid, member.uname, member.gname, member.mode) == (0, 0, "", "", 0o644)
            source = tar.extractfile(member)
            assert source is not None and member.name not in found
            found[member.name] = source.read()
    return found


@contextmanager
def server(answer: Callable[[Handler], None]) -> Iterator[tuple[str, list[Handler]]]:
    """Start a web server, and yield its address and the requests that it gets."""
    came: list[Handler] = []

    class Answers(Handler):
        def do_PUT(self) -> None:
            came.append(self)
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as held:
        held.daemon_threads = True
        thread = threading.Thread(target=held.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{held.server_address[1]}", came
        finally:
            held.shutdown()
            thread.join()


def says(status: int, body: str = "", taken: list[bytes] | None = None, **headers: str) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        got = handler.rfile.read(int(handler.headers["Content-Length"]))
        if taken is not None:
            taken.append(got)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


# ---------------------------------------------------------------- the archive


def test_a_run_becomes_one_archive_with_tables_logs_weights_and_sums(run: Path, tmp_path: Path) -> None:
    ended = call(run, "--out", tmp_path / "mine.tar.gz")
    found = contents(tmp_path / "mine.tar.gz")
    assert ended.exit_code == 0 and ended.stdout.startswith(f"{tmp_path / 'mine.tar.gz'}: {len(found)} files, ")
    names = {name.removeprefix("one/") for name in found}
    assert names >= {"README.txt", "SHA256SUMS", "job.toml", "model.safetensors", "validation.csv", "training.csv"}
    assert names >= {"log.txt", "events.jsonl", "summary.json"} and "coordinator.journal" not in names
    for name in ("model.safetensors", "events.jsonl", "log.txt", "summary.json", "job.toml"):
        assert found[f"one/{name}"] == (run / name).read_bytes()
    sums = dict(line.split("  ")[::-1] for line in found["one/SHA256SUMS"].decode().splitlines())
    assert set(sums) == names - {"SHA256SUMS"}
    assert all(hashlib.sha256(found[f"one/{name}"]).hexdigest() == sums[name] for name in sums)
    assert all(name in found["one/README.txt"].decode() for name in names)
    judged = list(csv.DictReader(io.StringIO(found["one/validation.csv"].decode())))
    assert [float(row["passes"]) for row in judged][-1] == 2.0 and float(judged[-1]["test_loss"]) > 0
    assert judged[-1]["workers"] == "2" and float(judged[-1]["accuracy"]) >= 0
    trained = list(csv.DictReader(io.StringIO(found["one/training.csv"].decode())))
    assert trained and int(trained[-1]["examples"]) > 0


def test_the_archive_lies_beside_the_run_and_the_run_is_as_it_was(run: Path) -> None:
    before = sorted(path.name for path in run.iterdir())
    assert call(run).exit_code == 0
    assert sorted(path.name for path in run.iterdir()) == before
    assert (run.parent / "one.tar.gz").is_file()
    assert not [path for path in run.parent.iterdir() if path.name.startswith(".")]


def test_links_and_what_is_not_the_runs_own_stay_outside(run: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(run, tmp_path / "with secrets")
    (tmp_path / "secret").write_text("secret")
    (mine / "log.txt").unlink()
    (mine / "log.txt").symlink_to(tmp_path / "secret")
    (mine / "stolen.png").symlink_to(tmp_path / "secret")
    (mine / "address").write_text("secret")
    os.mkfifo(mine / "pipe.png")
    call(mine)
    found = contents(tmp_path / "with_secrets.tar.gz")
    assert not any(body == b"secret" for body in found.values())
    assert not {name for name in found if name.endswith(("address", "stolen.png", "pipe.png", "log.txt"))}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["time.png", "log.txt"])
def test_a_folder_with_a_files_name_stays_outside_and_it_is_said(run: Path, tmp_path: Path, name: str) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    (mine / name).unlink(missing_ok=True)
    (mine / name).mkdir()
    ended = call(mine)
    assert ended.exit_code == 0 and f"{name} is no plain file, and left out" in ended.stderr
    assert f"mine/{name}" not in contents(tmp_path / "mine.tar.gz")


def test_tables_that_are_missing_with_the_events_are_told(run: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    (mine / "events.jsonl").unlink()
    (mine / "events.jsonl").symlink_to(run / "events.jsonl")
    assert "there are no events, and no tables" in call(mine).stderr


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_figures_that_are_no_plain_file_are_neither_waited_for_nor_printed(
    run: Path, tmp_path: Path, kind: str
) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    (tmp_path / "secret").write_text("secret")
    (mine / "summary.json").unlink()
    if kind == "pipe":
        os.mkfifo(mine / "summary.json")
    else:
        (mine / "summary.json").symlink_to(tmp_path / "secret")
    with server(says(500)) as (url, _):
        ended = call(mine, "--upload", url)
    assert ended.exit_code == 1
    assert "secret" not in ended.stdout and "there are no figures yet" in ended.stdout


def test_of_long_figures_the_beginning_is_printed_and_nothing_that_moves_a_cursor(run: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    (mine / "summary.json").write_text("{\x1b[2J\n" + " " * 1_000_000 + "the end")
    with server(says(500)) as (url, _):
        ended = call(mine, "--upload", url)
    assert "{?[2J\n" in ended.stdout and "\x1b" not in ended.stdout
    assert "the end" not in ended.stdout and "... and more: " in ended.stdout


def test_a_run_that_did_not_end_is_exported_as_far_as_it_is_and_it_is_said(run: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(run, tmp_path / "cut")
    for name in ("summary.json", "model.safetensors"):
        (mine / name).unlink()
    with open(mine / "events.jsonl", "ab") as file:
        file.write(b'{"event":"prog')  # the last event is still being written
    ended = call(mine)
    assert ended.exit_code == 0 and "there is no summary: it is still running, or was interrupted" in ended.stderr
    found = contents(tmp_path / "cut.tar.gz")
    assert found["cut/events.jsonl"] == (run / "events.jsonl").read_bytes()
    assert b"Note: there is no summary" in found["cut/README.txt"]


def test_a_sweep_has_its_figures_and_every_run(run: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "s4"
    (sweep / "runs").mkdir(parents=True)
    (sweep / "study.toml").write_text("seeds = 2\n")
    (sweep / "table.csv").write_text("workers,time\n8,1.5\n")
    (sweep / "time.svg").write_text("<svg/>")
    for seed in (0, 1):
        shutil.copytree(run, sweep / "runs" / f"workers=8-seed{seed}")
    assert call(sweep).exit_code == 0
    found = contents(tmp_path / "s4.tar.gz")
    assert {"s4/study.toml", "s4/table.csv", "s4/time.svg", "s4/runs/workers=8-seed1/validation.csv"} <= set(found)
    assert found["s4/runs/workers=8-seed0/model.safetensors"] == (run / "model.safetensors").read_bytes()


def test_what_cannot_be_is_refused_with_what_to_do(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "none").startswith("there is no folder")
    assert "is no run and no sweep" in refused(tmp_path / "empty")
    assert "end it in .tar.gz" in refused(run, "--out", tmp_path / "mine.zip")
    assert "make it first" in refused(run, "--out", tmp_path / "none" / "mine.tar.gz")
    (tmp_path / "link.tar.gz").symlink_to(tmp_path / "elsewhere")
    assert "is no plain file" in refused(run, "--out", tmp_path / "link.tar.gz")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/x", "by http or https, not by 'ftp'"),
        ("file:///etc/passwd", "by http or https"),
        ("host/x", "by http or https, and the address says neither"),
        ("127.0.0.1:8080", "by http or https, and the address says neither: give https://host/path"),
        ("http://", "no address of a web server"),
        ("http://host:port/", "give an address such as"),
        ("http://host/a b", "no address of a web server"),
        ("http://host/\r\nX-More: 1", "no address of a web server"),
        ("http://me:secret@host/", "leave it out"),
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_is_written(
    run: Path, tmp_path: Path, url: str, says: str
) -> None:
    why = refused(run, "--out", tmp_path / "mine.tar.gz", "--upload", url)
    assert says in why and "secret" not in why
    assert not (tmp_path / "mine.tar.gz").exists()


# ---------------------------------------------------------------- upload


def not_sent(run: Path, archive: Path, url: str, *more: str) -> str:
    """Return the errors of an upload that fails.

    The archive stays, the figures are printed, and the exit code is 1.
    """
    ended = call(run, "--out", archive, "--upload", url, *more)
    assert ended.exit_code == 1
    assert '"test_loss"' in ended.stdout and f"the archive is {archive}" in ended.stderr
    assert contents(archive)
    return ended.stderr


def test_the_archive_is_sent_whole_and_the_link_is_printed(run: Path, tmp_path: Path) -> None:
    taken: list[bytes] = []
    archive = tmp_path / "mine.tar.gz"
    with server(says(200, "\nhttps://drop.example/abc\nmore\n", taken)) as (url, came):
        ended = call(run, "--out", archive, "--upload", f"{url}/put/?key=1")
    assert ended.exit_code == 0 and ended.stdout.splitlines()[-1] == "https://drop.example/abc"
    assert taken == [archive.read_bytes()] and came[0].path == "/put/mine.tar.gz?key=1"


def test_without_a_word_in_the_answer_its_location_or_its_status_is_the_link(run: Path, tmp_path: Path) -> None:
    for headers, link in (({"Location": "/abc"}, "/abc"), ({}, "201 Created")):
        with server(says(201, **headers)) as (url, _):
            ended = call(run, "--out", tmp_path / "mine.tar.gz", "--upload", url)
        assert ended.exit_code == 0 and ended.stdout.splitlines()[-1] == link


def test_a_server_that_fails_is_told_with_what_it_said(run: Path, tmp_path: Path) -> None:
    with server(says(500, "the disk\x1b[31m is full")) as (url, _):
        why = not_sent(run, tmp_path / "mine.tar.gz", f"{url}/x?key=hidden")
    assert "it answers 500 Internal Server Error: the disk?[31m is full" in why and "hidden" not in why


def test_nobody_is_followed_to_another_address(run: Path, tmp_path: Path) -> None:
    with (
        server(says(200, "stolen")) as (other, theirs),
        server(says(307, Location=f"{other}/elsewhere")) as (url, _),
    ):
        why = not_sent(run, tmp_path / "mine.tar.gz", url)
    assert "307" in why and f"{other}/elsewhere" in why and "not followed" in why
    assert theirs == []


def test_a_server_that_is_not_there_is_told(run: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "Connection refused" in not_sent(run, tmp_path / "mine.tar.gz", f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("drips", [False, True])
def test_a_server_that_never_answers_is_given_up(run: Path, tmp_path: Path, drips: bool) -> None:
    over = threading.Event()

    def answer(handler: Handler) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        while not over.wait(0.05):
            if drips:  # it always sends something, and never ends
                handler.wfile.write(b"H")

    with server(answer) as (url, _):
        try:
            why = not_sent(run, tmp_path / "mine.tar.gz", url, "--timeout", "0.5")
        finally:
            over.set()
    assert "nothing moved for 0.5 s" in why or "no HTTP" in why


def test_an_answer_before_the_end_is_heard(run: Path, tmp_path: Path) -> None:
    """A server may refuse and hang up while much of the archive is not sent yet."""
    mine = shutil.copytree(run, tmp_path / "large")
    (mine / "model.safetensors").write_bytes(os.urandom(8 << 20))

    def answer(handler: Handler) -> None:
        handler.send_response(413)
        handler.end_headers()
        handler.wfile.write(b"too large")

    with server(answer) as (url, _):
        why = not_sent(mine, tmp_path / "large.tar.gz", url)
    # The system may discard the response when the server hangs up.
    assert "413" in why or "reset" in why


def test_what_is_no_web_server_is_told(run: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:

        def answer() -> None:
            with held.accept()[0] as line:
                line.recv(1 << 20)
                line.sendall(b"220 hello\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        why = not_sent(run, tmp_path / "mine.tar.gz", f"http://127.0.0.1:{held.getsockname()[1]}/")
        thread.join()
    assert "no HTTP" in why or "reset" in why


def spoken(run: Path, archive: Path, words: bytes) -> Result:
    """Upload to a server that reads everything and then answers with exactly these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as held:

        def answer() -> None:
            with held.accept()[0] as line:
                head, _, body = line.recv(1 << 20).partition(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split()[0])
                while len(body) < size:
                    body += line.recv(1 << 20)
                line.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        ended = call(run, "--out", archive, "--upload", f"http://127.0.0.1:{held.getsockname()[1]}/")
        thread.join()
    return ended


def test_nothing_a_server_says_moves_the_cursor(run: Path, tmp_path: Path) -> None:
    archive = tmp_path / "mine.tar.gz"
    bad = spoken(run, archive, b"HTTP/1.1 500 Oh\x1b]0;x\x07\r\nContent-Length: 0\r\n\r\n")
    good = spoken(run, archive, b"HTTP/1.1 201 Made\r\nLocation: /a\x1b[2Jb\r\nContent-Length: 0\r\n\r\n")
    assert "it answers 500 Oh?]0;x?" in bad.stderr and "\x1b" not in bad.output
    assert good.exit_code == 0 and good.stdout.splitlines()[-1] == "/a?[2Jb"


def test_an_answer_that_is_cut_short_is_no_success(run: Path, tmp_path: Path) -> None:
    words = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhttp://x"
    ended = spoken(run, tmp_path / "mine.tar.gz", words)
    assert ended.exit_code == 1 and "its answer was cut short, 92 bytes before the end" in ended.stderr
