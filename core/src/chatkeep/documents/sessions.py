"""What a head says of its session, and what a write makes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from chatkeep import heads
from chatkeep.metadata import SERVICE
from chatkeep.records import ABSENT, Head, Key, Lease, LogHead, Outcome, Scope, Write

from .driver import Change, Document, Driver, Part
from .logs import Log, log_head, new_log, relieve
from .packing import FORM, check_form
from .shelf import Cache, Shelf
from .states import State

VERSION_BYTES = 8
UPDATED_FOR = 1.0
"""Seconds for which the time of the last write stands: an index entry less to write while turns come fast."""
REMEMBERED = 3600.0
"""Seconds for which a head that is gone goes on saying so, for writers whose answer was lost."""


@lru_cache(maxsize=4096)
def id_of(key: Key) -> bytes:
    """What stands for a session in the database. The head holds the names themselves, too, and they are compared."""
    # JSON holds no line break.
    return blake2b(f"{key.scope.address}\n{key.session}".encode(), digest_size=20).digest()


def key_of(document: Document) -> Key:
    """Whose head it is."""
    return Key(Scope(*json.loads(document["scope"])), document["session"])


def is_live(document: Document | None, now: float) -> bool:
    """Whether there is a session, and its time is not over."""
    if document is None:
        return False
    check_form(document["form"], "a session")
    expires = document.get("expires")
    return document["life"] is not None and (expires is None or expires > now)


def head_of(key: Key, document: Document) -> Head:
    """The head as the store wants it."""
    owner, until = document["owner"], document["leased"]
    return Head(
        key,
        document["life"],
        document["created"],
        document["updated"],
        document["expires"],
        document["ttl"],
        json.loads(document["meta"]) if document["meta"] != "{}" else {},
        {log["name"]: log_head(log) for log in document["logs"]},
        document["fence"],
        None if owner is None else Lease(owner, until),
    )


def new_version() -> bytes:
    """A version that no head ever had."""
    return os.urandom(VERSION_BYTES)


def new_life() -> str:
    """A life that no session ever had."""
    return os.urandom(8).hex()


def version_of(document: Document | None) -> bytes | None:
    """The head's version; None if there is no head."""
    return None if document is None else document["version"]


def remembers(document: Document | None, version: bytes) -> bool:
    """Whether a head had this version lately."""
    recent: bytes = document["recent"] if document else b""
    return any(recent[place : place + VERSION_BYTES] == version for place in range(0, len(recent), VERSION_BYTES))


class Plan(NamedTuple):
    """What a write makes of a head: nothing of it is stored yet."""

    outcome: Outcome
    document: Document | None
    """The head as it is to be; None: nothing is to be changed."""
    shelf: Shelf

    @property
    def parts(self) -> list[Part]:
        return self.shelf.new


def gone(document: Document, version: bytes, limit: int, now: float, *, cleared: bool = False) -> Document:
    """A head that says that its session is gone, without a word of whose it was.

    `cleared`, or if the session had no parts: nothing remains to be deleted but the head, after a while.
    """
    lives = [*document.get("lives", ())]  # of one that is damaged, what can be told
    if document.get("life") is not None and document.get("parts", True):
        lives.append(document["life"])
    if cleared:
        lives = []
    return {
        "form": FORM,
        "version": version,
        "recent": _recent(document, version, limit),
        "number": document.get("number", 0) + 1,
        "scope": None,
        "session": None,
        "life": None,
        "updated": now,
        "service": None,
        "garbage": [],
        "lives": lives,
        "reap": None if lives else now + REMEMBERED,
        "due": now if lives else now + REMEMBERED,
    }


def _recent(document: Document | None, version: bytes, limit: int) -> bytes:
    recent: bytes = document.get("recent", b"") if document else b""
    return (recent + version)[-limit * VERSION_BYTES :]


def touched(document: Document, version: bytes, limit: int) -> Document:
    """The same head at its next version."""
    recent, number = _recent(document, version, limit), document["number"] + 1
    return {**document, "version": version, "recent": recent, "number": number}


def begun(key: Key, life: str, document: Document | None, now: float) -> Document:
    """The head of a new life, with nothing of the former one but what is to be cleared away."""
    lives = [] if document is None else [*document["lives"]]
    if document is not None and document["life"] is not None and document["parts"]:
        lives.append(document["life"])
    return {
        "form": FORM,
        "version": b"",
        "recent": document["recent"] if document else b"",
        "number": document["number"] if document else 0,
        "scope": key.scope.address,
        "session": key.session,
        "life": life,
        "created": now,
        "updated": now,
        "expires": None,
        "ttl": None,
        "kept": None,
        "parts": False,
        "meta": "{}",
        "service": None,
        "fence": 0,
        "owner": None,
        "leased": None,
        "logs": [],
        "state": None,
        "garbage": [],
        "lives": lives,
        "reap": None,
        "due": None,
    }


class Planner:
    """Makes plans: what memory's `Session.apply` does, on documents."""

    def __init__(self, driver: Driver, cache: Cache) -> None:
        self._driver = driver
        self._cache = cache

    def shelf(self, id: bytes, life: str, *, lenient: bool = False) -> Shelf:
        return Shelf(self._driver, id, life, self._cache, lenient=lenient)

    async def plan(
        self,
        key: Key,
        id: bytes,
        write: Write,
        stored: Document | None,
        *,
        version: bytes,
        life: str,
        lenient: bool = False,
    ) -> Plan:
        """What the write makes of the stored head, or an error if a condition of it does not hold.

        `version` is the one that the head is to have then, and `life` the one that begins where none is.
        `lenient`: what is missing of the session is lost, and no later head has given it up.
        """
        now = self._driver.clock()
        live = is_live(stored, now)
        head = head_of(key, stored) if live and stored else None
        heads.check_life(write, head, key.session, head.logs.get(write.log) if head else None)
        limits = self._driver.limits
        if head is None:
            if write.must_exist:
                return Plan(Outcome(ABSENT), None, self.shelf(id, ABSENT))
            document = begun(key, life, stored, now)
            head = head_of(key, document)
        else:
            assert stored is not None
            document = stored
            if write.delete:
                return Plan(Outcome(head.life), gone(stored, version, limits.recent, now), self.shelf(id, head.life))
        shelf = self.shelf(id, head.life, lenient=lenient)
        changes, outcome = await self._apply(head, document, write, shelf, now)
        ttl, expires = heads.renewed(head, write.expiry, now)
        if not live or not (write.is_touch or 0 <= now - head.updated_at < UPDATED_FOR):
            changes["updated"] = now
        if write.meta:
            meta = heads.merged(head.meta, write.meta)
            changes["meta"] = json.dumps(meta, ensure_ascii=False, separators=(",", ":"))
            changes["service"] = meta.get(SERVICE)
        garbage, over = [*document["garbage"], *shelf.garbage], _over(document, expires, now, limits.slack)
        parts = document["parts"] or bool(shelf.new)
        kept = _kept(document, expires, now, limits.patience) if parts else None
        changes |= {
            "ttl": ttl,
            "expires": expires,
            "kept": kept,
            "parts": parts,
            "garbage": garbage,
            "reap": None if parts and kept is None else over,
            "due": now if document["lives"] else over,
        }
        return Plan(outcome, {**touched(document, version, limits.recent), **changes}, shelf)

    async def _apply(
        self, head: Head, document: Document, write: Write, shelf: Shelf, now: float
    ) -> tuple[dict[str, Any], Outcome]:
        """The one kind of change that the write asks for: the fields of the head that it changes, and its outcome."""
        if write.state:
            state, versions = await State(document["state"], shelf).change(write)
            return {"state": state}, _outcome(head, document, write, versions=versions)
        if write.lease:
            fence, lease = heads.leased(head, write.lease, now)
            owner, until = lease or (None, None)
            outcome = _outcome(head, document, write)._replace(fence=fence)
            return {"fence": fence, "owner": owner, "leased": until}, outcome
        place = next((place for place, log in enumerate(document["logs"]) if log["name"] == write.log), None)
        log = Log(new_log(write.log) if place is None else document["logs"][place], shelf)
        known = log.batch(write.token)
        if known:
            return {}, Outcome(head.life, log.head, known, fence=head.fence)
        heads.check_tail(write, head.life, log.head)
        seqs: Any = ()
        added = removed = 0
        if write.append:
            seqs, added = await log.append(write, now)
        elif write.truncate_after is not None:
            removed = await log.truncate(write.truncate_after)
        elif write.replace:
            seqs = await log.replace(write.replace, now)
        elif write.rewrite:
            await log.rewrite(write.rewrite)
        else:
            return {}, Outcome(head.life, log.head, fence=head.fence)
        outcome = Outcome(head.life, log.head, seqs, added, removed, fence=head.fence)
        logs = [*document["logs"]]
        if place is not None:
            logs[place] = log.changed()
        elif write.append:
            logs.append(log.changed())
        else:
            return {}, outcome
        relieve(logs, write.log, shelf)
        return {"logs": logs}, outcome


def _outcome(head: Head, document: Document, write: Write, **more: Any) -> Outcome:
    return Outcome(head.life, head.logs.get(write.log, LogHead()), fence=head.fence, **more)


def _kept(document: Document, expires: float | None, now: float, patience: float) -> float | None:
    """Until when the session's parts are kept, once it expires at `expires`; for at least one ttl longer.

    And for longer than a write may take that has put parts already: the database deletes them unasked. Parts that are
    kept for ever stay so: whoever is about to give the session an expiry may never come to it.
    """
    kept: float | None = document["kept"]
    if expires is None:
        return None
    if document["parts"] and (kept is None or kept >= expires):
        return kept
    return expires + max(patience, expires - now)


def _over(document: Document, expires: float | None, now: float, part: float) -> float | None:
    """When a session that expires then is to be looked at, or deleted by the database: not if its parts would stay.

    A little later than it must be, so that it stands for many renewals: a database has an index over it.
    """
    if expires is None:
        return None
    known = document["due"] if document["reap"] is None else document["reap"]
    slack = max(0.0, expires - now) * part
    return known if known is not None and expires <= known <= expires + slack else expires + slack


def due_of(document: Document) -> float | None:
    """When a session is to be looked at that has nothing of former lives."""
    due: float | None = document["expires"] if document["reap"] is None else document["reap"]
    return due


def difference(before: Document, after: Document) -> Change:
    """What became of a head, as little of it as will do."""
    sets, pushes = dict[str, Any](), dict[str, Any]()
    _compare(before, after, "", sets, pushes)
    return Change(after, sets, pushes)


_GROWING = frozenset({"in", "batches"})


def _compare(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str, sets: dict[str, Any], pushes: dict[str, Any]
) -> None:
    for name, value in after.items():
        old = before[name]
        if value is old or (value == old and type(value) is type(old)):
            continue
        place = path + name
        if name == "logs":
            same = all(log is known for log, known in zip(value, old, strict=False))
            if len(value) > len(old):
                if same:
                    pushes[place] = value[len(old) :]
                else:  # a push onto a list and a change within it exclude one another
                    sets[place] = value
                continue
            for number, log in enumerate(value):
                if log is not old[number]:
                    _compare(old[number], log, f"{place}.{number}.", sets, pushes)
        elif name in _GROWING and old and value[: len(old)] == old:
            pushes[place] = value[len(old) :]
        else:
            sets[place] = value
