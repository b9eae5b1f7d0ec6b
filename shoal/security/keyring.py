"""The key files of a host. A key has one name and one role.

    FOLDER/NAME.secret      a secret key of this host; mode 0600, in a folder of mode 0700
    FOLDER/NAME.public      its public half for others: one line, ROLE:NAME:KEY
    FOLDER/allowed          the keys that may connect, a line each; revoked ones as revoked:NAME:KEY

On the list a key may be bound: ``ROLE:NAME:KEY group=GROUP until=2026-12-31T23:59:59Z``. A line
that is not understood admits nobody.

A node with the key NAME is called NAME or NAME.SOMETHING; in a worker group of that name
NAME/SOMETHING, in any other GROUP/NAME.SOMETHING (so key names have neither dots nor slashes, and
node names are unambiguous). The coordinator's key stands for its whole host and may use any name.
Secrets are read only here, and never printed.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from shoal import limits
from shoal.errors import Invalid
from shoal.files import or_refuse, replace_file
from shoal.security import expiry
from shoal.wire.messages.groups import is_group

# seconds: the system has no waiting for a lock that ends by itself, so it is tried again
_AGAIN = 0.02
_LOCKS = Path("/proc/locks")  # where the system says who has which


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of this folder within the context; it ends with its process.

    Raises Invalid, with the holder, after ``limits.ALONE_WITHIN``: a stopped one would never end.
    """
    with or_refuse(f"read {folder}", "shoal key new makes it"):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _hold(handle, folder)
        yield
    finally:
        os.close(handle)


def _hold(handle: int, folder: Path) -> None:
    within = limits.ALONE_WITHIN / limits.SECOND
    deadline = time.monotonic() + within
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_AGAIN)
                continue
        who, move = _holder(handle)
        raise Invalid(f"{who} has held {folder} for {within:g} s, so nothing was changed: {move}, then try again")


def _holder(handle: int) -> tuple[str, str]:
    """The holder, if the system tells, and the next move."""
    inode = str(os.fstat(handle).st_ino)
    with contextlib.suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():
            words = line.split()  # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131072 0 EOF
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                return f"process {words[4]}", f"see what it does (ps -fp {words[4]}), and let it go on (fg) or end it"
    return "another process", "look for a shoal key that was stopped (jobs), and let it go on (fg) or end it"


ROLES = ("coordinator", "server", "worker", "client")
CONFINED = ("worker", "client")  # roles whose keys may be confined to a group
REVOKED = "revoked"
ALLOWED = "allowed"
_NAME = re.compile(r"\w[\w-]{0,63}")
KEY_BYTES = 32
_LIST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key with its name, role and bounds."""

    role: str
    name: str
    public: str  # 52 letters and digits
    group: str = ""  # of workers, that it is confined to
    until: int = 0  # seconds since 1970: from then on it is refused; 0: it is good for ever

    @property
    def line(self) -> str:
        words = [f"{self.role}:{self.name}:{self.public}"]
        words += [f"group={self.group}"] * bool(self.group) + [f"until={expiry.written(self.until)}"] * bool(self.until)
        return " ".join(words)

    def is_of(self, node: str) -> bool:
        """Whether a node of this name may have this key."""
        if self.role == "coordinator":
            return True
        group, inside, rest = node.partition("/")
        if not inside:
            return node == self.name or node.startswith(f"{self.name}.")
        if self.group and self.group != group:
            return False
        return group == self.name or rest.startswith(f"{self.name}.")

    @property
    def called(self) -> str:
        if not self.group:
            return f"{self.name} or {self.name}.SOMETHING, and in a group GROUP/{self.name}.SOMETHING"
        return f"{self.group}/SOMETHING" if self.group == self.name else f"{self.group}/{self.name}.SOMETHING"


@dataclass(frozen=True, slots=True)
class OwnKey(PublicKey):
    """A key pair of this host. Its bounds are on the coordinator's list, not here."""

    secret: bytes = field(default=b"", repr=False)


def text_of(key: bytes) -> str:
    return base64.b32encode(key).decode().rstrip("=").lower()


def bytes_of(text: str) -> bytes:
    try:
        key = base64.b32decode(text.upper() + "====")
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise Invalid(f"{text[:80]!r} is no key: it has 52 letters and digits")
    return key


def default_folder() -> Path:
    if (given := os.environ.get("SHOAL_KEYS")) is not None and given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "shoal" / "keys"


def parse(line: str) -> PublicKey:
    first, *words = line.split() or [""]
    parts = first.split(":")
    if len(parts) != 3 or parts[0] not in (*ROLES, REVOKED):
        raise Invalid(f"{line.strip()[:120]!r} is no line of a key: it has ROLE:NAME:KEY, as shoal key new prints it")
    role, name, public = parts
    check_name(name)
    bytes_of(public)
    if name == limits.COORDINATOR and role not in ("coordinator", REVOKED):
        raise Invalid(f"{line.strip()[:120]!r}: that name is the coordinator's own")
    return PublicKey(role, name, public.lower(), *_bounds(role, words))


def _bounds(role: str, words: list[str]) -> tuple[str, int]:
    found: dict[str, str] = {}
    for word in words:
        kind, _, value = word.partition("=")
        # nobody is set free by a word that a script left empty
        if kind not in ("group", "until") or not value or kind in found:
            raise Invalid(f"{word[:80]!r} is unknown: only group=GROUP and until=TIME may follow ROLE:NAME:KEY, once")
        found[kind] = value
    group = found.get("group", "")
    check_group(role, group)
    return group, expiry.moment(found["until"]) if "until" in found else 0


def check_group(role: str, group: str) -> None:
    if group and not is_group(group):
        raise Invalid(f"group {group[:64]!r}: needs 1 to 32 letters, digits, dots and dashes, and not 'cluster'")
    if group and role not in CONFINED:
        raise Invalid(
            f"group {group!r}: the key of a {role} is the whole cluster's; only those of {' and '.join(f'{one}s' for one in CONFINED)} can be confined"
        )


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid(f"name {name[:80]!r}: a key's name has 1 to 64 letters, digits and dashes, and no dots")


def make(folder: Path, name: str, role: str) -> OwnKey:
    check_name(name)
    if role not in ROLES:
        raise Invalid(f"role {role!r} is none of {', '.join(ROLES)}")
    if name == limits.COORDINATOR and role != "coordinator":
        raise Invalid(f"that name is the coordinator's own: give --role coordinator, or take another name for a {role}")
    _private_folder(folder)
    secret_file = folder / f"{name}.secret"
    if os.path.lexists(secret_file):
        raise Invalid(f"{secret_file} is there already: take another name, or remove it first if it is lost anyway")
    public, secret = (z85.decode(half) for half in zmq.curve_keypair())
    own = OwnKey(role, name, text_of(public), secret=secret)
    handle = os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask is
        file.write(f"{role}:{name}:{text_of(secret)}\n")
        file.flush()
        os.fsync(file.fileno())
    replace_file(folder / f"{name}.public", f"{own.line}\n".encode())
    return own


def own_keys(folder: Path) -> list[OwnKey]:
    with or_refuse(f"read {folder}", "choose another folder for keys"):
        files = sorted(folder.glob("*.secret"))
    if open_to_others := _open_to_others(folder):
        raise Invalid(open_to_others)
    return [_read_own(file) for file in files]


def _open_to_others(folder: Path) -> str:
    """The error if other users could write to the folder; else empty."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return ""  # there is none, or reading it reports the error
    return f"{folder} can be written to by others (mode {mode:04o}): chmod 700 {folder}" if mode & 0o022 else ""


def plain_file(path: str, flags: int) -> int:
    """Open a regular file; refuses pipes and devices, which could block."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no plain file")
    return handle


def _read_own(file: Path) -> OwnKey:
    try:
        with open(file, encoding="ascii", opener=plain_file) as opened:
            if (mode := stat.S_IMODE(os.fstat(opened.fileno()).st_mode)) & 0o077:
                raise Invalid(f"{file} can be read by others (mode {mode:04o}): chmod 600 {file}")
            role, name, text = opened.read(4_096).strip().split(":")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    except ValueError as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid(f"{file} is no secret key: shoal key new makes one") from None
    if role not in ROLES or name != file.name.removesuffix(".secret"):
        raise Invalid(f"{file} is no secret key of that name: shoal key new makes one")
    try:
        secret = bytes_of(text)
    except Invalid:
        # never show its contents
        raise Invalid(f"{file} is damaged: shoal key new makes another") from None
    return OwnKey(role, name, text_of(z85.decode(zmq.curve_public(z85.encode(secret)))), secret=secret)


def read_list(folder: Path) -> tuple[list[PublicKey], list[str]]:
    """The keys on the list, revoked ones included, and the errors of unreadable lines."""
    path = folder / ALLOWED
    try:
        if open_to_others := _open_to_others(folder):
            return [], [f"{open_to_others}: until then nobody is let in"]
        with open(path, encoding="utf-8", errors="replace", opener=plain_file) as file:
            text = file.read(_LIST_BYTES)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"cannot read {path}: {error.strerror}: nobody is let in"]
    keys, wrong = list[PublicKey](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if _is_remark(line):
            continue
        try:
            keys.append(parse(line))
        except Invalid as error:
            wrong.append(f"{path}, line {number}: {error}")
    return keys, wrong


def _is_remark(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def allow(folder: Path, key: PublicKey, group: str | None = None, until: int | None = None) -> PublicKey | None:
    """Add a key to the list; returns the name's previous key, which is now refused.

    ``group`` and ``until`` bind it; "" and 0 unbind it; None keeps the bounds that the name had.
    """
    if key.role == REVOKED:
        raise Invalid(f"the key of {key.name} was revoked: make a new one (shoal key new {key.name})")
    check_group(key.role, group or "")
    _private_folder(folder)
    with alone(folder):
        keys = _readable(folder)
        if any(one.public == key.public and one.role == REVOKED for one in keys):
            raise Invalid(f"this key of {key.name} was revoked here: make a new one there (shoal key new)")
        other = next((one for one in keys if one.public == key.public and one.name != key.name), None)
        if other is not None:
            raise Invalid(f"this key is {other.name}'s already: revoke it first (shoal key revoke {other.name})")
        # more than one if it was written by hand
        had = [one for one in keys if one.name == key.name and one.role != REVOKED]
        others = [one for one in had if one.public != key.public]
        same = [one for one in had if one.public == key.public]
        key = _bound(key, [*others, *same][-1] if had else None, group, until)
        _write(folder, [*(_revoked(one) if one in others else one for one in keys if one not in same), key])
        return others[0] if others else None


def _bound(key: PublicKey, before: PublicKey | None, group: str | None, until: int | None) -> PublicKey:
    """The key with given bounds, else its line's, else the name's earlier ones."""
    if before is not None:
        _check_same(key, before, group, until)
    if group is None:
        group = key.group or (before.group if before is not None and key.role in CONFINED else "")
    if until is None:
        until = key.until or (before.until if before is not None and before.public == key.public else 0)
    return PublicKey(key.role, key.name, key.public, group, until)


def _check_same(key: PublicKey, before: PublicKey, group: str | None, until: int | None) -> None:
    """Refuse bounds in a foreign line that differ from those on this list."""
    wrong = [f"group={key.group}"] * (group is None and key.group not in ("", before.group))
    if until is None and before.public == key.public and key.until not in (0, before.until):
        wrong.append(f"until={expiry.written(key.until)}")
    if wrong:
        raise Invalid(
            f"the line says {' and '.join(wrong)}, which is not how {key.name} is bound here ({before.line}): if it is to be, say so yourself "
            f"(--group, --until)"
        )


def revoke(folder: Path, name: str) -> list[PublicKey]:
    with alone(folder):
        keys = _readable(folder)
        gone = [one for one in keys if one.name == name and one.role != REVOKED]
        if not gone:
            known = ", ".join(sorted({one.name for one in keys if one.role != REVOKED})) or "nobody"
            raise Invalid(f"no key of {name[:80]!r} is on the list in {folder} (there is: {known})")
        _write(folder, [_revoked(one) if one in gone else one for one in keys])
        return gone


def _revoked(key: PublicKey) -> PublicKey:
    return PublicKey(REVOKED, key.name, key.public)


def _readable(folder: Path) -> list[PublicKey]:
    """Raises Invalid if a line is not understood, so that rewriting loses nothing."""
    keys, wrong = read_list(folder)
    if wrong:
        raise Invalid(f"{wrong[0]}; mend it first")
    return keys


def _write(folder: Path, keys: list[PublicKey]) -> None:
    """Write the list; keys keep their lines and comments, new ones are appended."""
    path, left, lines = folder / ALLOWED, {key.public: key for key in keys}, list[str]()
    with or_refuse(f"write {path}", "make room, or make it writable"):
        for line in path.read_text("utf-8", "replace").splitlines() if path.exists() else ():
            if _is_remark(line):
                lines.append(line)
            elif (key := left.pop(parse(line).public, None)) is not None:
                lines.append(key.line)
        lines += [key.line for key in left.values()]
        replace_file(path, "".join(f"{line}\n" for line in lines).encode())


def _private_folder(folder: Path) -> None:
    with or_refuse(f"make {folder}", "choose another folder for keys"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
        others = [
            one.name for one in folder.iterdir() if one.suffix not in (".secret", ".public") and one.name != ALLOWED
        ]
    if open_to_others := _open_to_others(folder):
        raise Invalid(open_to_others)
    if mode & 0o077:
        if others:  # not a folder for keys: do not lock out its other readers
            raise Invalid(f"{folder} has other files, and other readers (mode {mode:04o}): name a folder for keys")
        with or_refuse(f"close {folder} to others (mode {mode:04o})", f"chmod 700 {folder}"):
            folder.chmod(0o700)
