"""The security settings of a transport: which addresses it may use, and with which keys.

    Safety.local()              loopback and Unix sockets, unencrypted
    Safety.with_keys(folder)    any address; tcp is encrypted, and both sides prove who they are
    Safety.insecure()           any address, unencrypted: anyone who reaches it has full access

Unencrypted arrays have a checksum, unless the sender has ``checking(False)``.

Keys are used for addresses that have one (``tcp://KEY@HOST:PORT``), and by nodes that listen on
tcp. To call, a host needs its own key and the coordinator's address: the other nodes' keys come
with their addresses in the coordinator's view. The coordinator's list alone decides who may
connect; it is sent to the servers (``Allowed``).
"""

from __future__ import annotations

from copy import copy
from pathlib import Path

from shoal import limits
from shoal.errors import Invalid
from shoal.security import keyring
from shoal.security.address import Address, check_address, is_local, parsed
from shoal.security.keyring import OwnKey, PublicKey
from shoal.wire.messages.groups import member_name

_UNCHECKED = "unchecked:"


class Safety:
    """Security settings. ``plain`` is their form for forked processes, without secrets."""

    def __init__(self, folder: Path | None = None, insecure: bool = False) -> None:
        self.folder, self.is_insecure = folder, insecure
        self.checksums = True  # of arrays that travel in the clear
        self._own: list[OwnKey] = keyring.own_keys(folder) if folder is not None else []
        if folder is not None and not self._own:
            raise Invalid(
                f"there is no key in {folder}: shoal key new NAME makes one (--keys FOLDER, in Python keys=FOLDER, or "
                f"SHOAL_KEYS, names another folder)"
            )

    @classmethod
    def local(cls) -> Safety:
        return cls()

    @classmethod
    def with_keys(cls, folder: str | Path) -> Safety:
        """Use the keys of this folder, which is read and checked now."""
        return cls(Path(folder).expanduser().absolute())

    @classmethod
    def insecure(cls) -> Safety:
        return cls(insecure=True)

    @classmethod
    def chosen(cls, keys: str | Path | None = None, insecure: bool = False, at: str = "") -> Safety:
        """From options, else SHOAL_KEYS, else the default folder if ``at`` needs keys."""
        if keys and insecure:
            raise Invalid(
                "keys and insecure exclude each other: leave --insecure or --keys away (in Python insecure=, keys=)"
            )
        if keys:
            return cls.with_keys(keys)
        if insecure:
            return cls.insecure()
        wants = isinstance(at, str) and at != "" and (bool(parsed(at).key) or not is_local(at))
        folder = keyring.default_folder()
        if wants and (parsed(at).key or any(folder.glob("*.secret"))):
            return cls.with_keys(folder)
        return cls.local()

    def checking(self, checksums: bool) -> Safety:
        if not isinstance(checksums, bool):
            raise Invalid(f"checksums={checksums!r}: needs True or False")
        other = copy(self)
        other.checksums = checksums
        return other

    @property
    def plain(self) -> str:
        told = "insecure" if self.is_insecure else "local" if self.folder is None else f"keys:{self.folder}"
        return told if self.checksums else _UNCHECKED + told

    @classmethod
    def of_plain(cls, text: str) -> Safety:
        if text.startswith(_UNCHECKED):
            return cls.of_plain(text.removeprefix(_UNCHECKED)).checking(False)
        if text.startswith("keys:"):
            return cls.with_keys(text.removeprefix("keys:"))
        return cls.insecure() if text == "insecure" else cls.local()

    @property
    def has_keys(self) -> bool:
        return self.folder is not None

    @property
    def reaches_anywhere(self) -> bool:
        """Whether addresses of other machines may be used: with keys, or if insecure."""
        return self.has_keys or self.is_insecure

    def check(self, address: str) -> None:
        check_address(address, self.reaches_anywhere)

    def own(self, node: str) -> OwnKey:
        # its own before one for everybody
        for key in sorted(self._own, key=lambda key: key.role == "coordinator"):
            if key.is_of(node):
                return key
        have = ", ".join(f"{key.name} ({key.role})" for key in self._own) or "none"
        name = self._own[0].name if self._own else "NAME"
        raise Invalid(
            f"no key for a node called {node!r} in {self.folder} (keys: {have}): call it {name} or {name}.SOMETHING, or make it one "
            f"(shoal key new)"
        )

    def may_be(self, node: str, role: str) -> bool:
        return any(key.is_of(node) and key.role in (role, "coordinator") for key in self._own)

    def named(self, node: str, role: str = "client", group: str = "") -> str:
        """The proposed name if a key here allows it; else one that a key allows."""
        whole = member_name(node, group)
        if not self._own or any(key.is_of(whole) for key in self._own):
            return whole
        fitting = [key for key in self._own if key.role == role] or self._own
        return member_name(f"{fitting[0].name}.{node}", group)

    def key_at(self, node: str, address: Address) -> str:
        """The key that the node there must have; empty: unencrypted. Raises Invalid."""
        check_address(address.plain, self.reaches_anywhere)
        if address.key:
            if not self.has_keys:
                raise Invalid(
                    f"{address.plain} is called with a key, and this side has none: shoal key new NAME makes one (--keys FOLDER, in Python "
                    f"keys=FOLDER, or SHOAL_KEYS, says where it is)"
                )
            return address.key
        if is_local(address.plain) or self.is_insecure:
            return ""
        known = self._coordinators() if node == limits.COORDINATOR else set[str]()
        if len(known) != 1:
            raise Invalid(
                f"{address.plain} has no key in it, and which one it must have is not known here: give the whole address "
                f"(tcp://KEY@HOST:PORT, as that side prints it), or shoal key add what shoal key list shows there"
            )
        return known.pop()

    def _coordinators(self) -> set[str]:
        return {key.public for key in (*self._own, *self.list()) if key.role == "coordinator"}

    def list(self) -> list[PublicKey]:
        return [] if self.folder is None else keyring.read_list(self.folder)[0]
