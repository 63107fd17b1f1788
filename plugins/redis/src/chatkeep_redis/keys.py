"""What the keys are called.

All keys of a session have one hash tag, the digest of its full name, so that they lie in one slot of a cluster. The
full name is kept in the session's head and compared. A scope's catalogue has a tag of its own, and so has the list of
all scopes.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from chatkeep.records import Key, Scope

REMEMBERED = 4096
"""How many names are remembered: making one takes longer than asking for it."""


class SessionKeys(NamedTuple):
    """The keys of one session, and its full name; scripts/commit.lua says what each holds."""

    name: bytes
    head: bytes
    order: bytes
    known: bytes
    values: bytes
    recent: bytes

    @property
    def all(self) -> tuple[bytes, ...]:
        """What a script that may write is given."""
        return self[1:]


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self.scopes = (self._prefix + b"{scopes}names", self._prefix + b"{scopes}times")
        self.session = lru_cache(REMEMBERED)(self._session)
        self.catalogue = lru_cache(REMEMBERED)(self._catalogue)

    def _tagged(self, kind: bytes, name: bytes) -> bytes:
        return self._prefix + b"{" + blake2b(kind + name, digest_size=16).hexdigest().encode() + b"}"

    def _session(self, key: Key) -> SessionKeys:
        name = f"{key.scope.address}\n{key.session}".encode()  # JSON has no line feed of its own
        tag = self._tagged(b"session", name)
        return SessionKeys(name, *(tag + each for each in (b"head", b"order", b"known", b"values", b"recent")))

    def _catalogue(self, scope: Scope) -> bytes:
        return self._tagged(b"catalogue", scope.address.encode()) + b"sessions"
