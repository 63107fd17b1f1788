"""What a document store must be able to do, and the documents that it is given.

A *head* is a dict of plain values: text, whole numbers, floats, booleans, bytes, None, and lists and dicts of these.
Its keys are short ASCII names without a dot. Of what is in it, a driver looks at the fields alone that `Head` names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

from chatkeep.errors import StoreError
from chatkeep.records import Health

Document = dict[str, Any]
"""A head as it is stored. Nobody changes one that they were given."""
PartName = bytes
"""Ten bytes, which name a part within its session and were never used before."""

GRACE = 3600.0
"""Seconds for which a part that no head reaches may be one that a living writer is about to use."""


class Head(TypedDict):
    """The fields of a head that a driver may look at, for its indexes and its expiry. A head has more."""

    version: bytes
    """Another one after every change."""
    scope: str | None
    """The address of its scope. None: the session is gone, and the head says so for a while."""
    session: str | None
    """Its id; "" is the scope itself, which has state and is in no listing."""
    updated: float
    """Of the last write."""
    service: str | None
    """The service session id, as the text by which it is searched for."""
    reap: float | None
    """After this time nobody needs the head: it may be deleted, later by at least as much as a write may take."""
    due: float | None
    """From this time on it is for `Driver.due` to be found."""


class Change(NamedTuple):
    """What becomes of a head."""

    document: Document
    """The whole head as it is to be."""
    sets: Mapping[str, Any] | None = None
    """Where given, the difference alone will do. Values by their paths, such as ``logs.0.tail``."""
    pushes: Mapping[str, Sequence[Any]] = {}
    """What comes behind the end of the lists at these paths. No path is, or lies in, another one of the change."""
    former: Document | None = None
    """Where there is no difference: the head that is changed."""


class Part(NamedTuple):
    """A part to be stored."""

    name: PartName
    data: bytes
    digests: Sequence[bytes] = ()
    """Of the message ids in it, each different in every session, life and log: what `Driver.holding` looks for."""


@dataclass(frozen=True)
class Limits:
    """How much goes where. Sizes are bytes.

    A large head is read at once and written slowly, where a database writes a document whole.
    """

    inline_records: int = 64
    """How many messages of a log the head holds; half of them stay when it is more."""
    inline_bytes: int = 64 * 1024
    head_bytes: int = 256 * 1024
    """How much all of a session's logs may have in the head; the largest of the others go into leaves when more."""
    leaf_records: int = 64
    leaf_bytes: int = 256 * 1024
    body_bytes: int = 16 * 1024
    """A message or a state value with more lies in parts of its own."""
    part_bytes: int = 4 * 1024 * 1024
    """How large a part may be."""
    state_bytes: int = 4 * 1024
    """How much state the head holds, and below that, in a part of its own, a leaf."""
    refs: int = 128
    """How many leaves or lists of leaves a log's head names; half of them go into a list when it is more."""
    recent: int = 32
    """How many of its latest versions a head remembers."""
    patience: float = 600.0
    """Seconds within which a write is over, however slow it is: parts are kept at least so much longer than needed."""
    garbage: int = 32
    """How many parts that were given up a head lists before they are deleted."""
    slack: float = 1 / 20
    """For which part of its lifetime a session may be kept longer than it must: so much more seldom `reap` changes."""


View = Literal["reader", "writer", "settled"]
"""Which of its heads a database that has several copies is to give: one that suits the reader, perhaps an older one;
the latest; or the latest that no failover can take back any more."""


class UncertainError(Exception):
    """A change was sent and not answered: it may have been made, or be made later. The cause says why."""


class Driver(Protocol):
    """One database. `id` is 20 bytes that stand for one session of one scope.

    What is acknowledged stays, and is seen by every `find` that begins later. Operations on one document are atomic;
    nothing is asked of several. Errors of the driver come through, but for a change whose outcome is not known.
    """

    limits: Limits
    driver_errors: tuple[type[Exception], ...]

    def translate(self, error: Exception) -> StoreError: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> Health: ...

    def clock(self) -> float:
        """The time by the database's clock, in seconds since 1970."""
        ...

    async def pause(self, attempt: int) -> None:
        """Wait a little before another attempt, which others may win: the longer, the more there were."""
        ...

    async def all_of(self, calls: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Make all of these calls, several at once if that is quicker. An error of one ends it."""
        ...

    # Heads

    async def find(self, id: bytes, view: View) -> Document | None:
        """The head, also an expired one."""
        ...

    async def insert(self, id: bytes, head: Document) -> bool:
        """Store a head where there is none; whether there was none. An `UncertainError` if that is not known."""
        ...

    async def swap(self, id: bytes, version: bytes, change: Change) -> bool:
        """Change the head if it has that version; whether it had. An `UncertainError` if that is not known."""
        ...

    async def remove(self, id: bytes, version: bytes) -> None:
        """Delete the head if it has that version."""
        ...

    # Parts

    async def put(self, id: bytes, life: str, parts: Sequence[Part], *, until: float | None) -> None:
        """Store parts of a life. After `until` nobody needs them; None: they stay. Until `settle` they are pending."""
        ...

    async def get(self, id: bytes, names: Sequence[PartName]) -> Mapping[PartName, bytes]:
        """Those of the parts that are there."""
        ...

    async def drop(self, id: bytes, names: Sequence[PartName]) -> None:
        """Delete parts. Those that are not there are none too many."""
        ...

    async def drop_life(self, id: bytes, life: str) -> None:
        """Delete every part of a life."""
        ...

    async def extend(self, id: bytes, life: str, until: float | None) -> None:
        """Keep every part of a life until then, or for ever; a part that is kept for longer stays so."""
        ...

    async def holding(self, id: bytes, digests: Sequence[bytes]) -> Sequence[PartName]:
        """The session's parts with one of these digests: every one that was put before, perhaps some more."""
        ...

    # Many sessions

    async def listed(
        self, scope: str, *, below: str | None, service: str | None, after: tuple[float, str, str] | None, limit: int
    ) -> Sequence[Document]:
        """Heads of sessions: those of the scope with this address, or those whose address begins with `below`.

        In order of ``(-updated, session, scope)``, behind `after`. `service` narrows them where given. The fields `in`,
        `refs`, `batches` and `gone` of their logs, and `state`, may be left out.
        """
        ...

    async def scoped(
        self, scope: str, *, below: str | None, after: tuple[bytes, Document] | None, limit: int
    ) -> Sequence[tuple[bytes, Document]]:
        """The same, and the heads of the scopes themselves, with their ids, in any order that stays.

        `after` is the last one of the page before. A page with fewer than `limit` is the last one. Every head that was
        acknowledged before the call is among them.
        """
        ...

    async def due(self, now: float, limit: int) -> Sequence[tuple[bytes, Document]]:
        """Heads whose `due` has come, also gone ones, with their ids."""
        ...

    async def pending(self, before: float, limit: int) -> Sequence[tuple[bytes, PartName]]:
        """Parts that were put before that time and have not been settled."""
        ...

    async def settle(self, id: bytes, names: Sequence[PartName]) -> None:
        """These parts are reached from a head: `pending` need not name them any more."""
        ...
