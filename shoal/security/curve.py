"""Authenticates callers by their keys (CURVE), and checks the key of every message.

The node's own loop answers every handshake (libzmq asks through a socket; there is no thread):
keys on the list are accepted, others refused. The list is this host's file, reread when it
changes, plus what the coordinator sends. Every message is checked against it, so a revoked or
expired key (by this host's clock) is cut off at once, although its connection stays open. Callers
cannot choose the name of a connection: each message names its sender, and answers go where a key
of that name was last used. Refusals are counted, and reported on standard error at a limited rate.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from shoal import limits
from shoal.security import expiry, keyring
from shoal.security.keyring import KEY_BYTES, REVOKED, ROLES, PublicKey, text_of
from shoal.wire.messages import Allowed

LISTEN = ("coordinator", "server", "client")  # roles of those who may be called
_KNOWN = (*ROLES, REVOKED)
# how a handshake is refused whose key has expired: the number is all that libzmq tells the caller,
# and 400 is any other
EXPIRED = 500
Envelope = list[bytes]

_ZAP = "inproc://zeromq.zap.01"  # where libzmq asks
_LOOK = 0.1  # seconds between two looks at the list, while messages come
_HOLD = limits.HELLO_WITHIN / limits.SECOND / 2  # seconds for the coordinator's list


class CurveCaller(NamedTuple):
    """The key and route last used under a name."""

    public: str
    route: bytes  # of the connection it spoke from last


class CallerRefused(NamedTuple):
    """Why a key that was accepted is refused now."""

    counter: str
    why: str  # in the words of an answer
    end: str  # and in reports about its node


class CallerList:
    def __init__(self, folder: Path | None, own: PublicKey, clock: Callable[[], int] = expiry.now) -> None:
        self.version = 0
        self.wrong: list[str] = []
        self._folder = folder
        self._always = [own]
        self._told: list[PublicKey] = []
        self._file: list[PublicKey] = []
        self._seen: tuple[int, ...] = ()
        self._by_key: dict[str, PublicKey] = {}
        self._clock = clock
        self._bounded: list[PublicKey] = []  # those that are good until some time
        self._past: list[str] = []  # of them, whose time has come
        self.look()

    def look(self) -> bool:
        """Reread the file and the clock; whether anything changed."""
        read = self._read()
        return self._age() or read

    def _age(self) -> bool:
        """Whether the set of expired keys changed, by time or because the clock was set."""
        past = [key.public for key in self._bounded if self.is_past(key)]
        if past == self._past:
            return False
        self._past = past
        self.version += 1
        return True

    def _read(self) -> bool:
        seen: tuple[int, ...] = (0,)
        if self._folder is not None:
            try:
                found = (self._folder / keyring.ALLOWED).stat()
                seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            except OSError:
                seen = (0,)
        if seen == self._seen:
            return False
        self._seen = seen
        self._file, self.wrong = ([], []) if self._folder is None else keyring.read_list(self._folder)
        self._merge()
        return True

    def tell(self, keys: Sequence[PublicKey]) -> None:
        self._told = list(keys)
        self._merge()

    def trust(self, coordinator: str) -> None:
        if all(key.public != coordinator for key in self._always):
            self._always.append(PublicKey("coordinator", "coordinator", coordinator))
            self._merge()

    @property
    def wait_for_word(self) -> bool:
        """Delay refusals: a remote coordinator's list may not have arrived yet."""
        return len(self._always) > 1

    def find(self, public: str) -> PublicKey | None:
        return self._by_key.get(public)

    def is_past(self, key: PublicKey) -> bool:
        return 0 < key.until <= self._clock()

    def refusal(self, public: str, name: str = "") -> CallerRefused | None:
        """Why messages by this key and name are refused, if they are."""
        key = self.find(public)
        if key is None or key.role == REVOKED:
            why = f"the key {public} was revoked: shoal key new makes another, which the coordinator's host must add (shoal key add)"
            return CallerRefused("revoked key", why, "its key was revoked")
        if self.is_past(key):
            return CallerRefused("expired key", f"the key {public} {expired(key)}", "its key has expired")
        if name and not key.is_of(name):
            bound = f", and confined to group {key.group!r}" if key.group else ""
            why = f"the key is {key.name}'s{bound}: a node that has it is called {key.called}"
            return CallerRefused("impostor", why, f"its key is for {key.called} now")
        return None

    def all(self) -> list[PublicKey]:
        return [key for key in self._by_key.values() if key not in self._always]

    def _merge(self) -> None:
        # Later entries win: the coordinator decides how a key is bound, and a key revoked by
        # either stays revoked.
        found = [*self._file, *self._told]
        found += [key for key in found if key.role == REVOKED]
        self._by_key = {key.public: key for key in [*found, *self._always]}
        self._bounded = [key for key in self._by_key.values() if key.until]
        self.version += 1


class RefusalLog:
    """Reports refusals on standard error, at a limited rate.

    Refused callers retry, so a repeated line is printed ever more rarely, with a count.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._second, self._lines, self._left = 0, 0, 0
        # when, until when it is left out, and how often it was
        self._said: dict[str, tuple[float, float, int]] = {}

    def __call__(self, line: str) -> None:
        now = self._clock()
        when, until, more = self._said.pop(line, (now, now, 0))
        if now < until:
            self._said[line] = when, until, more + 1
            return
        wait = min(max(2 * (until - when), limits.LOG_AGAIN / limits.SECOND), limits.LOG_SELDOM / limits.SECOND)
        self._said[line] = now, now + wait, 0
        while len(self._said) > limits.MEMBERS:
            del self._said[next(iter(self._said))]
        self._write(now, line + (f" ({more:,} times more since this was said)" if more else ""))

    def _write(self, now: float, line: str) -> None:
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        if self._lines >= limits.LOG_LINES:
            self._left += 1
            return
        self._lines += 1
        more, self._left = f" (and {self._left:,} such lines before)" if self._left else "", 0
        # in one piece: others write, too
        print(f"shoal: {self._name}: {line}{more}\n", end="", file=sys.stderr, flush=True)


class CurveAuthenticator:
    """Answers handshakes, and decides whose messages are accepted and who gets answers."""

    def __init__(
        self, context: zmq.Context[Any], name: str, guests: CallerList, counts: Counter[str], log: RefusalLog
    ) -> None:
        self.guests, self.log = guests, log
        self.is_authority = name == limits.COORDINATOR  # its list is everybody's
        self.names: dict[str, CurveCaller] = {}  # who has called
        self._ways: Counter[str] = Counter()  # how many of them by each key
        self._counts = counts
        self._looked = time.monotonic()
        # since when, whom to answer, its key, its address
        self._waiting: list[tuple[float, list[bytes], str, str]] = []
        self._told: set[tuple[str, str]] = set()  # who heard why it is not taken
        self._has_list: dict[str, int] = {}  # who has heard which list
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP)
        self._say_wrong()

    # ------------------------------------------------------------ the list

    def look(self) -> bool:
        """Whether the list has changed; looks at most every so often."""
        if (now := time.monotonic()) - self._looked < _LOOK:
            return False
        self._looked = now
        changed = self._fresh()
        if self._waiting:
            self._decide()
        return changed

    def _fresh(self) -> bool:
        if changed := self.guests.look():
            self._told.clear()
            self._say_wrong()
        return changed

    def _say_wrong(self) -> None:
        for line in self.guests.wrong:
            self.log(line)

    def list(self) -> Allowed:
        return Allowed([(key.role, key.name, key.public, key.group, key.until) for key in self.guests.all()])

    def take_list(self, message: Allowed) -> None:
        self.guests.tell([PublicKey(*one) for one in message.keys if one[0] in _KNOWN])
        self._told.clear()
        self._decide()

    def lacks_list(self, name: str, key: PublicKey) -> bool:
        """Whether this listening node still needs the list; marks it as sent."""
        if not self.is_authority or key.role not in LISTEN or self._has_list.get(name) == self.guests.version:
            return False
        self._has_list[name] = self.guests.version
        return True

    # ------------------------------------------------------------ who comes in

    def answer(self) -> None:
        self._fresh()
        while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            caller, _, version, request, _, address, _, mechanism, *rest = self.socket.recv_multipart(zmq.DONTWAIT)
            key = text_of(rest[0]) if mechanism == b"CURVE" and rest and len(rest[0]) == KEY_BYTES else ""
            envelope = [caller, b"", version, request]
            self._waiting.append((time.monotonic(), envelope, key, address.decode(errors="replace")))
        self._decide()

    def _decide(self) -> None:
        """Decide pending handshakes; unknown keys wait a while for the coordinator's list."""
        now, waiting, self._waiting = time.monotonic(), self._waiting, []
        for one in waiting:
            since, envelope, key, address = one
            guest = self.guests.find(key)
            if self.guests.refusal(key) is None:
                self._let_in(envelope, key)
            elif guest is None and self.guests.wait_for_word and now - since < _HOLD:
                self._waiting.append(one)
            else:
                self._refuse(envelope, key, address, guest)

    def _let_in(self, envelope: Envelope, key: str) -> None:
        self._counts["let in"] += 1
        for name in [name for name, its in self.names.items() if its.public == key]:
            self._has_list.pop(name, None)  # what was sent to it while it was away is lost
        self.socket.send_multipart([*envelope, b"200", b"", key.encode(), b""])

    def _refuse(self, envelope: Envelope, key: str, address: str, guest: PublicKey | None) -> None:
        code, count = b"400", "strange key"
        if guest is None:
            why = "is not on the list: shoal key list shows who may call, shoal key add adds"
        elif guest.role == REVOKED:
            count = "revoked key"
            why = f"was {guest.name}'s, and was revoked: it needs a new one (shoal key new, there)"
        else:
            why, count, code = f"is {guest.name}'s, and {expired(guest)}", "expired key", b"%d" % EXPIRED
        self._counts[count] += 1
        self.log(f"a caller at {address} was refused: its key {key} {why}")
        self.socket.send_multipart([*envelope, code, b"", b"", b""])

    # ------------------------------------------------------------ who is heard

    def sender(self, name: str, route: bytes, frame: zmq.Frame) -> tuple[PublicKey | None, str]:
        """The key of this message; or None and the reason, which is given once per name and key."""
        public = str(frame.get("User-Id"))
        if (refusal := self.guests.refusal(public, name)) is not None:
            self._counts[refusal.counter] += 1
            return None, self._once(name, public, refusal.why)
        key = self.guests.find(public)
        assert key is not None
        if self.names.get(name) != (caller := CurveCaller(public, route)):
            self.forget(name)
            self.names[name] = caller
            self._ways[public] += 1
            while len(self.names) > 2 * limits.MEMBERS:
                self._forget_one()
        return key, ""

    def forget(self, name: str) -> None:
        """Send no answers to this name until it is used again."""
        self._has_list.pop(name, None)
        if (caller := self.names.pop(name, None)) is not None:
            self._ways[caller.public] -= 1
            if not self._ways[caller.public]:
                del self._ways[caller.public]

    def _forget_one(self) -> None:
        """Drop the oldest name of the key with the most names, so that nobody else is hurt."""
        ((public, _),) = self._ways.most_common(1)
        self.forget(next(name for name, caller in self.names.items() if caller.public == public))

    def may_hear(self, name: str) -> bool:
        """Whether this name may get messages: its key may have been revoked or bound meanwhile."""
        caller = self.names.get(name)
        return caller is not None and self.guests.refusal(caller.public, name) is None

    def _once(self, name: str, public: str, why: str) -> str:
        if (name, public) in self._told:
            return ""
        if len(self._told) < limits.MEMBERS:
            self._told.add((name, public))
        self.log(f"what {name[: limits.NAME_CHARS]!r} says is not taken: {why}")
        return why


def expired(key: PublicKey) -> str:
    return f"was good until {expiry.written(key.until)}: the coordinator's host lets it in again (shoal key add LINE --until LATER)"
