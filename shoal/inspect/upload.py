"""Uploads a file by HTTP PUT, as file-drop services accept it; the answer is a link.

Only http and https. Redirects are not followed but reported. The query string of an address may be
a secret, so no message shows it. A chunk may take ``silence`` seconds to go, and the answer as
long to come.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import SplitResult, quote, urlsplit

from shoal.errors import Invalid, NotUploaded

PIECE = 65_536
ANSWER = 65_536  # most bytes of an answer that are read
SHOWN = 500  # most characters of its first line in messages

Sent = Callable[[int, int], None]  # bytes sent, bytes in total


def check(url: str, name: str) -> SplitResult:
    """Check the address; one that ends in / gets the file name appended."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # detects a port that is not a number
    except ValueError as error:
        raise Invalid(f"--upload: {error}: give an address such as https://host/path") from None
    if parts.scheme not in ("http", "https"):
        how = f"not by {parts.scheme!r}" if parts.scheme and "://" in url else "and the address says neither"
        raise Invalid(f"--upload sends by http or https, {how}: give https://host/path")
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise Invalid("--upload: that is no address of a web server: give one such as https://host/path")
    if parts.username is not None:
        raise Invalid("--upload: a name or password in an address would be seen by others: leave it out")
    path = parts.path or "/"
    return parts._replace(path=f"{path}{quote(name)}" if path.endswith("/") else path)


def put(path: Path, url: str, silence: float, sent: Sent | None = None) -> str:
    """Send the file; returns the first line of the answer, or its Location."""
    parts = check(url, path.name)
    where = f"{parts.scheme}://{parts.netloc}{parts.path}"
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=silence)) as line:
            line.connect()  # before the file is opened: most errors occur here
            with open(path, "rb") as file:
                size = path.stat().st_size
                headers = {"Content-Length": str(size), "Content-Type": "application/gzip", "Connection": "close"}
                target = f"{parts.path}{f'?{parts.query}' if parts.query else ''}"
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    # the server stopped reading: its answer says why
                    line.request("PUT", target, _pieces(file, size, sent), headers)
            with _within(line, silence), line.getresponse() as answer:
                body = answer.read(ANSWER)
    except TimeoutError:
        raise NotUploaded(where, f"nothing moved for {silence:g} s") from None
    except ssl.SSLError as error:
        raise NotUploaded(where, f"no secure connection ({error.reason or error})") from None
    except http.client.HTTPException as error:
        said = f"the answer is no HTTP, or was cut short ({type(error).__name__})"
        raise NotUploaded(where, said) from None
    except OSError as error:
        raise NotUploaded(where, error.strerror or str(error)) from None
    return _said(where, answer, body)


def _pieces(file: IO[bytes], size: int, sent: Sent | None) -> Iterator[bytes]:
    gone = 0
    while piece := file.read(PIECE):
        yield piece
        gone += len(piece)
        if sent is not None:
            sent(gone, size)


@contextlib.contextmanager
def _within(line: http.client.HTTPConnection, silence: float) -> Iterator[None]:
    """Limit the time for the whole answer, however slowly it arrives."""
    late = threading.Event()
    held = line.sock

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)

    clock = threading.Timer(silence, cut)
    clock.daemon = True
    clock.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        clock.cancel()
    if late.is_set():
        raise TimeoutError


def _said(where: str, answer: http.client.HTTPResponse, body: bytes) -> str:
    """The content of a successful answer; raises for any other."""
    lines = body.decode("utf-8", "replace").splitlines()
    first = _shown(next((line.strip() for line in lines if line.strip()), ""))
    status = _shown(f"{answer.status} {answer.reason}".strip())
    elsewhere = answer.getheader("Location", "")
    if 300 <= answer.status < 400:
        to = f" to {elsewhere[:SHOWN]!a}" if elsewhere else ""
        points = f"it answers {status} and points{to}, which is not followed"
        raise NotUploaded(where, f"{points}: give that address yourself")
    if not 200 <= answer.status < 300:
        raise NotUploaded(where, f"it answers {status}{f': {first}' if first else ''}")
    if answer.length and len(body) < ANSWER:
        raise NotUploaded(where, f"its answer was cut short, {answer.length:,} bytes before the end")
    return first or _shown(elsewhere) or status


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)[:SHOWN]
