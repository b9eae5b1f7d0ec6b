"""Downloads a file from the first mirror that has the right one.

The file is kept in memory until its checksum is verified, then written whole. If a mirror stops in
the middle, the next one continues from there, since all have the same bytes. Files with a wrong
checksum are discarded.
"""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from shoal.files import replace_file

Progress = Callable[[str], None]

PATIENCE = 10.0  # seconds for a mirror to respond
LONGEST = 600.0  # seconds for one file from one mirror
PIECE = 1 << 16
REPORT_EVERY = 1.0  # seconds between two progress messages
NETWORK = (OSError, http.client.HTTPException, ValueError)  # ValueError: a malformed address


class Mirrors:
    """Mirrors with the same files. An unreachable one is not tried again."""

    def __init__(self, addresses: list[str], progress: Progress | None = None, patience: float = PATIENCE) -> None:
        self.addresses = list(addresses)
        self.failures: list[str] = []  # messages of what went wrong so far
        self._progress, self._patience = progress, patience

    def get(self, name: str, size: int, sha256: str, folder: Path) -> Path | None:
        """The file in ``folder`` under its name; None if no mirror has it (see ``failures``)."""
        content = bytearray()
        for mirror in list(self.addresses):
            if self._get(mirror, name, size, sha256, content):
                folder.mkdir(parents=True, exist_ok=True)
                replace_file(folder / name, bytes(content))
                return folder / name
        return None

    def _get(self, mirror: str, name: str, size: int, sha256: str, content: bytearray) -> bool:
        try:
            self._read(mirror, name, size, content)
        except urllib.error.HTTPError as error:
            error.close()
            return self._failed(mirror, f"{name}: {error.code} {error.reason}")
        except urllib.error.URLError as error:  # unreachable: the other files would wait as long
            self.addresses.remove(mirror)
            return self._failed(mirror, f"{name}: {getattr(error.reason, 'strerror', None) or error.reason}")
        except NETWORK as error:
            return self._failed(mirror, f"{name}: {str(error) or type(error).__name__}")
        if len(content) < size:
            return self._failed(mirror, f"{name}: it ended after {len(content):,} of {size:,} bytes")
        if (found := hashlib.sha256(content).hexdigest()) != sha256:
            content.clear()
            return self._failed(mirror, f"{name}: sha256 {found[:12]}... instead of {sha256[:12]}..., thrown away")
        return True

    def _read(self, mirror: str, name: str, size: int, content: bytearray) -> None:
        """Append what arrives, even if it ends early; one extra byte reveals a longer file."""
        headers = {"Range": f"bytes={len(content)}-"} if content else {}
        request = urllib.request.Request(mirror + name, headers=headers)
        with urllib.request.urlopen(request, timeout=self._patience) as answer:
            if content and answer.status != http.client.PARTIAL_CONTENT:
                content.clear()
            begun = reported = time.monotonic()
            while piece := answer.read(min(PIECE, size + 1 - len(content))):
                content += piece
                now = time.monotonic()
                if now - begun > LONGEST:
                    raise TimeoutError(f"not done after {LONGEST:.0f} s")
                if self._progress and now - reported > REPORT_EVERY:
                    reported = now
                    self._progress(f"fetching {name}: {len(content) / 1e6:.1f} of {size / 1e6:.1f} MB")

    def _failed(self, mirror: str, why: str) -> bool:
        self.failures.append(f"{mirror} {why}")
        return False
