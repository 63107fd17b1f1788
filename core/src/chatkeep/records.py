"""The plain data that passes between the store and a backend.

Everything here is a tuple of plain values: quick to make, impossible to change behind somebody's back.
Times are seconds since 1970 by the backend's clock, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

OnConflict = Literal["keep", "replace", "error", "strict"]

ABSENT = ""
"""As an expected version or an expected life: nothing may be there yet."""


class Scope(NamedTuple):
    """Whose data: an exact address, outermost field first. None is "not set", which is an address too."""

    app: str | None = None
    tenant: str | None = None
    user: str | None = None

    @property
    def address(self) -> str:
        """An injective text of this scope: JSON, such as ``["shop","acme",null]``."""
        return json.dumps(self, ensure_ascii=False, separators=(",", ":"))

    @property
    def prefix(self) -> str:
        """The text with which the address of this scope and of every scope below it begins."""
        depth = self.depth
        if depth == len(self):
            return self.address
        return json.dumps(self[:depth], ensure_ascii=False, separators=(",", ":"))[:-1] + ("," if depth else "")

    @property
    def depth(self) -> int:
        """How many fields matter: up to the innermost one that is set."""
        return max((place for place, field in enumerate(self, 1) if field is not None), default=0)

    def contains(self, other: Scope) -> bool:
        """Whether `other` is this scope or lies below it."""
        depth = self.depth
        return self[:depth] == other[:depth]


class Key(NamedTuple):
    """One session. An empty `session` is the scope itself, which has state and nothing else."""

    scope: Scope
    session: str


class Cursor(NamedTuple):
    """A place in a log. It knows the life it belongs to, and how often what the log held had been changed by then."""

    life: str
    seq: int
    rewrite: int = 0

    def __str__(self) -> str:
        return f"{self.life}.{self.seq}.{self.rewrite}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that `str()` turned into `text`; a ValueError if it is none."""
        life, *numbers = text.split(".")
        if len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ValueError(f"{text!r} is no cursor: use the text of a Cursor that chatkeep returned")
        return cls(life, int(numbers[0]), int(numbers[1]))


LOST = "lost/1"
"""The format of what stands in for a record that the database has lost, or whose surroundings are damaged."""


class Record(NamedTuple):
    """One message as a backend keeps it."""

    seq: int
    """Its place in the log, from 1. 0 in a record that has no place yet."""
    id: str | None
    role: str
    starts_turn: bool
    format: str
    """Names the codec and the version of the payload, such as ``chat/1``."""
    created_at: float | None
    """None in a record to be stored: the backend's clock says."""
    text: str | None
    payload: bytes

    def same_content(self, other: Record) -> bool:
        """Whether both say the same; where and when they were stored does not count."""
        return (self.payload, self.format, self.role, self.starts_turn) == (
            other.payload,
            other.format,
            other.role,
            other.starts_turn,
        )


Body = tuple[int, str | None, str, bytes]
"""What a message is made of: `seq`, `id`, `format` and `payload` of its record."""


class Replace(NamedTuple):
    """Put `records` in the place of everything at or below `upto` (None: everything in the log)."""

    upto: int | None
    records: Sequence[Record] = ()


class Rewrite(NamedTuple):
    """Put `record` in the place of the one at `record.seq`, if that is there and, where given, holds `expected`."""

    record: Record
    expected: bytes | None = None


class Keep(NamedTuple):
    """What an append leaves in its log; see clause 10 of the contract (docs/contract.md)."""

    max_messages: int | None = None
    max_age: float | None = None
    remember_ids: int = 1000
    """How many ids of trimmed records the log goes on knowing."""


class Expiry(NamedTuple):
    """The session's lifetime after this write. ``ttl=None`` renews by what the session has."""

    ttl: float | None = None
    fixed: bool = False
    """Count from the beginning of the life instead of from this write."""


class StateOp(NamedTuple):
    """Set a state key, or delete it (``value=None``). ``expected``: None is any version, ABSENT is none."""

    key: str
    format: str = ""
    value: bytes | None = None
    expected: str | None = None


class LeaseOp(NamedTuple):
    """Take or renew (``ttl`` > 0) or give back (``ttl`` = 0) the session's lease for `owner`."""

    owner: str
    ttl: float


class Write(NamedTuple):
    """One atomic step on one session. All of it happens, or none of it.

    At most one kind of change per write: one of the log's (append with trim, truncate, replace, rewrite), the state's,
    the lease's, or the deletion. `meta` and `expiry` go with any of them; with none of them it is a touch.
    """

    token: bytes
    """Unique to this write. A backend that has seen it lately answers as it did then and changes nothing."""
    log: str = ""
    append: Sequence[Record] = ()
    on_conflict: OnConflict = "keep"
    batch: bool = False
    """The token is the digest of a caller's batch id: remember it durably for the log's last BATCHES appends."""
    expected_tail: int | None = None
    expected_rewrite: int | None = None
    truncate_after: int | None = None
    replace: Replace | None = None
    rewrite: Rewrite | None = None
    keep: Keep = Keep()
    state: Sequence[StateOp] = ()
    meta: Mapping[str, str | None] | None = None
    """Merged into the session's metadata key by key; None removes a key."""
    expiry: Expiry = Expiry()
    life: str | None = None
    """Only in this life; ABSENT: only if there is none."""
    must_exist: bool = False
    """Change nothing and begin no life where there is none."""
    fence: int | None = None
    lease: LeaseOp | None = None
    delete: bool = False
    """End the session's life: everything in it goes."""

    @property
    def is_touch(self) -> bool:
        """Whether this only renews the expiry. A touch is no write: `updated_at` stays."""
        changes = (self.append, self.replace, self.rewrite, self.state, self.lease, self.meta)
        return self.truncate_after is None and not any(changes)

    def version(self, index: int) -> str:
        """The version that the state key of the operation at `index` gets: never given twice."""
        return f"{self.token.hex()}-{index}"


BATCHES = 128
"""How many appends with a batch id a log remembers."""


class Span(NamedTuple):
    """Which records to read. `after` and `before` are exclusive; ``limit=None`` is all of them."""

    after: int | None = None
    before: int | None = None
    limit: int | None = None
    newest: bool = False
    """Fill the page from the end; it is returned oldest first all the same."""
    bodies: bool = False
    """Bodies will do: a backend that is quicker with them may fill the page's `bodies` in the place of `records`."""


class Select(NamedTuple):
    """Which state entries to read: the named ones, or those with a prefix, after a key, up to a limit."""

    keys: Sequence[str] | None = None
    prefix: str = ""
    after: str | None = None
    limit: int | None = None


class Listing(NamedTuple):
    """Which sessions to list."""

    below: bool = False
    """Also those of the scopes below."""
    where: Mapping[str, str] = {}
    """Entries that the metadata must hold."""
    after: str | None = None
    """The `next` of the page before."""
    limit: int = 100


RECENT = 256
"""How many writes a backend remembers at least for the sake of the store's own retries."""


class LogHead(NamedTuple):
    """Where a log stands."""

    tail: int = 0
    """The newest visible record's seq; 0 if there is none."""
    last: int = 0
    """The newest seq ever given out in this life."""
    size: int = 0
    """How many records it holds."""
    rewrite: int = 0
    """How often what the log held was changed in this life: a replaced beginning, an edit, a redaction."""


class Lease(NamedTuple):
    owner: str
    until: float


class Head(NamedTuple):
    """The small thing per session that decides."""

    key: Key
    life: str
    created_at: float
    updated_at: float
    expires_at: float | None
    ttl: float | None
    meta: Mapping[str, str]
    logs: Mapping[str, LogHead]
    fence: int = 0
    lease: Lease | None = None


class Outcome(NamedTuple):
    """What a commit did."""

    life: str
    """The life that was written to; ABSENT where `must_exist` found none."""
    log: LogHead = LogHead()
    seqs: Sequence[int] = ()
    """One per record of the append or the replacement: where it is, or was before it was trimmed."""
    added: int = 0
    """How many records are new."""
    removed: int = 0
    """How many records `truncate_after` took out."""
    versions: Sequence[str | None] = ()
    """One per state operation; None where a key was deleted, or was not there to delete."""
    fence: int = 0


class RecordPage(NamedTuple):
    """Records in order of seq, from one instant."""

    records: Sequence[Record]
    head: Head | None
    """As of the same instant; its `logs` may hold the log that was read alone. None: no such session."""
    more: bool = False
    """Whether there are further records in the direction of reading."""
    bodies: Sequence[Body] | None = None
    """Where the span asked for them and the backend has them, instead of `records`."""


class StateEntry(NamedTuple):
    key: str
    version: str
    format: str
    value: bytes


class StatePage(NamedTuple):
    """State entries in the byte order of their keys, from one instant."""

    entries: Sequence[StateEntry]
    life: str | None
    more: bool = False


class HeadPage(NamedTuple):
    heads: Sequence[Head]
    next: str | None = None
    """Where the next page goes on; None at the end. Opaque."""


class Receipt(NamedTuple):
    """What was removed, or with ``dry_run`` would have been."""

    sessions: int = 0
    messages: int = 0
    state_keys: int = 0
    dry_run: bool = False


class SweepReport(NamedTuple):
    expired: int = 0
    """Sessions whose time was over and whose data is gone now."""
    orphans: int = 0
    """Leftovers of dead writers that were removed."""


class Health(NamedTuple):
    """What `ping` found."""

    backend: str
    server: str
    """Product and version, such as ``SQLite 3.40.1``."""
    details: Mapping[str, Any] = {}
