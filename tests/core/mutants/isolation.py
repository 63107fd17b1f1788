"""Mistakes against clauses 22 to 24: keys that lack a part, names not taken as they are, and broad deletions."""

from __future__ import annotations

import fnmatch
import json
import unicodedata
from collections.abc import Callable, Iterator, MutableMapping
from math import inf
from typing import Any

from chatkeep import Scope, heads, metadata
from chatkeep.arguments import check_id
from chatkeep.errors import ConflictError
from chatkeep.memory import Log, MemoryBackend, Session
from chatkeep.metadata import SERVICE
from chatkeep.records import Head, HeadPage, Key, Listing, LogHead, Outcome, Receipt, Select, StatePage, Write
from chatkeep.store import ScopedStore

from . import meanwhile, mutant, swapped

contains = Scope.contains
scoped = ScopedStore.scoped
service_entry = metadata.service_entry


class Folded(MutableMapping[Any, Any]):
    """A mapping that takes all keys for one that `fold` makes the same."""

    def __init__(self, fold: Callable[[Any], Any]) -> None:
        self.fold = fold
        self.items_by_fold: dict[Any, tuple[Any, Any]] = {}

    def __getitem__(self, key: Any) -> Any:
        return self.items_by_fold[self.fold(key)][1]

    def __setitem__(self, key: Any, value: Any) -> None:
        first, _ = self.items_by_fold.get(self.fold(key), (key, None))
        self.items_by_fold[self.fold(key)] = first, value

    def __delitem__(self, key: Any) -> None:
        del self.items_by_fold[self.fold(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in self.items_by_fold.values()])

    def __len__(self) -> int:
        return len(self.items_by_fold)


def backend_folding(name: str, mistake: str, fold: Callable[[Key], Any]) -> None:
    """A mutant whose backend files sessions under less than their whole key."""

    def begin(self: MemoryBackend) -> None:
        MemoryBackend.__init__(self)
        self.held = Folded(fold)  # type: ignore[assignment]

    mutant(22, mistake=mistake)(type(name, (MemoryBackend,), {"__init__": begin}))


def folding_ids(name: str, mistake: str, fold: Callable[[str], Any]) -> None:
    """A mutant whose backend takes some session ids for others."""
    backend_folding(name, mistake, lambda key: key._replace(session=fold(key.session)))


def folding_scopes(name: str, mistake: str, fold: Callable[[str | None], Any]) -> None:
    """A mutant whose backend takes some fields of scopes for others."""
    backend_folding(name, mistake, lambda key: key._replace(scope=Scope(*map(fold, key.scope))))


# 22: whose data

backend_folding("KeyWithoutScope", "the key of a session is its id alone", lambda key: key.session)
backend_folding("KeyWithoutApp", "the key of a session lacks the app", lambda key: (key.scope[1:], key.session))
backend_folding("KeyWithoutTenant", "the key of a session lacks the tenant", lambda key: (key.scope[::2], key.session))
backend_folding("KeyWithoutUser", "the key of a session lacks the user", lambda key: (key.scope[:2], key.session))
backend_folding(
    "JoinedWithColons",
    "the parts of a key are joined with colons",
    lambda key: ":".join([*(field or "" for field in key.scope), key.session]),
)
backend_folding(
    "FieldsThatAreSet",
    "a key holds the fields of the scope that are set, and not which they are",
    lambda key: (*(field for field in key.scope if field is not None), "/", key.session),
)
folding_scopes("NoneIsAName", "a field that is not set is stored as the text null", lambda field: field or "null")
folding_scopes(
    "ScopesIgnoreCase", "fields of scopes are compared without regard to case", lambda field: field and field.casefold()
)
folding_ids("IdsIgnoreCase", "session ids are compared without regard to case", str.casefold)
folding_ids("IdsWithoutSpaces", "session ids lose the spaces at their ends", lambda id: id.strip(" ") or id)
folding_ids("IdsEndAtNul", "a session id ends at its first NUL", lambda id: id.partition("\0")[0] or id)
folding_ids("IdsAreNormalised", "session ids are normalised", lambda id: unicodedata.normalize("NFC", id))
folding_ids("IdsOf255Bytes", "a session id is cut after 255 bytes", lambda id: id.encode()[:255])


@mutant(22, mistake="a session that is not there is looked for by the beginning of its id")
class IdByPrefix(MemoryBackend):
    def live(self, key: Key) -> Session | None:
        if key.session and key not in self.held:
            names = [each for each in self.held if each.scope == key.scope and each.session.startswith(key.session)]
            key = names[0] if names else key
        return super().live(key)


@mutant(22, mistake="a session id may be a pattern: * and ? stand for anything")
class IdIsAPattern(MemoryBackend):
    def live(self, key: Key) -> Session | None:
        if key not in self.held and {"*", "?"} & set(key.session):
            names = [each for each in self.held if each.scope == key.scope and each.session]
            key = next((each for each in names if fnmatch.fnmatchcase(each.session, key.session)), key)
        return super().live(key)


@mutant(22, mistake="log names are compared without regard to case")
class LogsIgnoreCase(Session):
    def __init__(self, key: Key, life: str, now: float) -> None:
        super().__init__(key, life, now)
        self.logs = Folded(str.casefold)  # type: ignore[assignment]


@mutant(22, mistake="state keys lose the spaces at their ends")
class KeysWithoutSpaces(Session):
    def __init__(self, key: Key, life: str, now: float) -> None:
        super().__init__(key, life, now)
        self.state = Folded(lambda name: name.strip(" ") or name)  # type: ignore[assignment]


@mutant(22, mistake="message ids are compared without regard to case")
class MessageIdsIgnoreCase(Log):
    def __init__(self) -> None:
        super().__init__()
        self.ids = Folded(lambda id: id and id.casefold())  # type: ignore[assignment]


@mutant(22, mistake="batch ids are cut after 255 bytes", place="chatkeep.log.check_id")
def batch_ids_of_255_bytes(value: Any, what: str, limit: int = 1024) -> str:
    checked = check_id(value, what, limit)
    return checked[:255] if what == "batch_id" else checked


@mutant(22, mistake="whatever is given as an id is turned into a text", place="chatkeep.store.check_id")
def ids_of_anything(value: Any, what: str, limit: int = 1024) -> str:
    return str(value)


@mutant(22, mistake="ids are measured in characters and not in bytes", place="chatkeep.store.check_id")
def ids_in_characters(value: Any, what: str, limit: int = 1024) -> str:
    return value if isinstance(value, str) and 0 < len(value) <= limit else check_id(value, what, limit)


swapped(
    "NoLimitOfLogNames", 22, mistake="the names of logs have no limit", place="chatkeep.session.NAME_BYTES", value=10**6
)


@mutant(22, mistake="None as a tenant is the scope without one", place="chatkeep.store.ScopedStore.scoped")
def none_is_no_tenant(self: Any, **fields: Any) -> Any:
    given = {name: value for name, value in fields.items() if value is not None}
    return scoped(self, **given) if given else self


@mutant(22, mistake="a view can be turned into one of another tenant", place="chatkeep.records.Scope.contains")
def everything_lies_below(self: Scope, other: Scope) -> bool:
    return True


@mutant(22, mistake="a write under an id that somebody else uses is refused")
class TakenBySomebodyElse(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if key.session and any(each.session == key.session and each.scope != key.scope for each in self.held):
            raise ConflictError(f"session {key.session!r} exists already")
        return await super().commit(key, write)


@mutant(22, mistake="leases are held under the session's id, in all scopes together")
class LeasesOfAllScopes(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if write.lease and write.lease.ttl:
            for other in [each for each in self.held if each.session == key.session and each != key]:
                heads.leased(self.held[other].head, write.lease, self.clock())
        return await super().commit(key, write)


# 23: listing, deleting, erasing, purging


@mutant(23, mistake="sessions are listed by when they began", place="chatkeep.heads.listing_place")
def listed_by_beginning(head: Head) -> tuple[float, str, str]:
    return -head.created_at, head.key.session, head.key.scope.address


@mutant(
    23,
    mistake="sessions are listed by when they were last written, the oldest first",
    place="chatkeep.heads.listing_place",
)
def listed_oldest_first(head: Head) -> tuple[float, str, str]:
    return head.updated_at, head.key.session, head.key.scope.address


@mutant(23, mistake="sessions are listed by id", place="chatkeep.heads.listing_place")
def listed_by_id(head: Head) -> tuple[float, str, str]:
    return 0.0, head.key.session, head.key.scope.address


@mutant(
    23,
    mistake="sessions written at one time have no order, and a page may leave them out",
    place="chatkeep.heads.listing_place",
)
def listed_by_time_alone(head: Head) -> tuple[float, str, str]:
    return -head.updated_at, "", ""


@mutant(23, mistake="the place in a listing is an offset: it drifts while sessions are written")
class ListingByOffset(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        offset = 0 if listing.after is None else self.offset(listing.after)
        page = await super().sessions(scope, listing._replace(after=None, limit=10**6))
        found = page.heads[offset : offset + listing.limit]
        more = offset + listing.limit < len(page.heads)
        return HeadPage(found, json.dumps([offset + listing.limit, "", ""]) if more else None)

    def offset(self, after: str) -> int:
        number, _, _ = heads.listing_after(after)
        return int(number)


@mutant(23, mistake="a write of state does not move a session to the front of the listing")
class StateIsNoWrite(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        before = self.head.updated_at
        outcome = super().apply(write, now)
        if write.state:
            self.head = self.head._replace(updated_at=before)
        return outcome


@mutant(
    23,
    mistake="whoever reads renews, and that counts as a write",
    place="chatkeep.records.Write.is_touch",
    kind=property,
)
def a_touch_is_a_write(self: Write) -> bool:
    return False


@mutant(23, mistake="a listing shows the sessions of the scopes below, too")
class ListedBelow(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        return await super().sessions(scope, listing._replace(below=True))


@mutant(23, mistake="a listing goes one level down and no further")
class ListedOneLevelDown(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        page = await super().sessions(scope, listing)
        return page._replace(heads=[head for head in page.heads if head.key.scope.depth <= scope.depth + 1])


@mutant(
    23, mistake="what lies below a scope is told by how its address begins", place="chatkeep.records.Scope.contains"
)
def below_by_prefix(self: Scope, other: Scope) -> bool:
    return contains(self, other) or (
        bool(self.depth)
        and self[: self.depth - 1] == other[: self.depth - 1]
        and (other[self.depth - 1] or "").startswith(self[self.depth - 1] or "\0")
    )


@mutant(23, mistake="the place in a listing opens the scope that it was made in")
class PlaceOpensItsScope(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        if listing.after is not None:
            _, _, address = heads.listing_after(listing.after)
            scope = Scope(*json.loads(address)) if address.startswith("[") else scope
        return await super().sessions(scope, listing)


@mutant(23, mistake="what is no place in a listing is its beginning")
class NonsenseIsTheBeginning(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        try:
            return await super().sessions(scope, listing)
        except ValueError:
            return await super().sessions(scope, listing._replace(after=None))


@mutant(23, mistake="deleting a session leaves its state")
class DeletedButForState(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        former = self.live(key)
        outcome = await super().commit(key, write)
        if write.delete and former:
            self.left = {**getattr(self, "left", {}), key: former.state}
        elif not write.delete and not former and key in self.held:
            self.held[key].state = {**getattr(self, "left", {}).get(key, {}), **self.held[key].state}
        return outcome

    async def state(self, key: Key, select: Select) -> StatePage:
        page = await super().state(key, select)
        left = getattr(self, "left", {}).get(key, {}) if not self.live(key) else {}
        return page._replace(entries=list(left.values())) if left and select.keys is None else page


@mutant(23, mistake="deleting a session leaves its further logs")
class DeletedButForLogs(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        former = self.live(key)
        outcome = await super().commit(key, write)
        if write.delete and former:
            self.left = {**getattr(self, "left", {}), key: {name: log for name, log in former.logs.items() if name}}
        elif not write.delete and not former and key in self.held:
            session = self.held[key]
            session.logs.update(getattr(self, "left", {}).pop(key, {}))
            session.head = session.head._replace(logs={name: log.head() for name, log in session.logs.items()})
        return outcome


@mutant(23, mistake="deleting a session deletes those whose ids begin with its own")
class DeletesByPrefix(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        outcome = await super().commit(key, write)
        for other in list(self.held) if write.delete else ():
            if other.scope == key.scope and other.session.startswith(key.session):
                del self.held[other]
        return outcome


@mutant(23, mistake="erase takes this scope alone")
class EraseStaysHere(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        kept = {key: session for key, session in self.held.items() if key.scope != scope}
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        if older_than is None:
            self.held.update(kept)
        return receipt


@mutant(23, mistake="a dry run removes, too")
class DryRunIsWet(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        return (await super().remove(scope, older_than=older_than))._replace(dry_run=dry_run)


@mutant(23, mistake="a receipt counts the messages of the main logs alone")
class ReceiptOfMainLogs(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        doomed = [session for key, session in self.held.items() if scope.contains(key.scope)]
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        return receipt._replace(messages=sum(session.head.logs.get("", LogHead()).size for session in doomed))


@mutant(23, mistake="a receipt counts scopes as sessions")
class ReceiptCountsScopes(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        before = {key for key in self.held if scope.contains(key.scope) and not key.session}
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        return receipt._replace(sessions=receipt.sessions + len(before) * (older_than is None))


@mutant(23, mistake="purge goes by when a session began")
class PurgeByBeginning(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        updated = {key: session.head.updated_at for key, session in self.held.items()}
        for session in self.held.values():
            session.head = session.head._replace(updated_at=session.head.created_at)
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        for key, session in self.held.items():
            session.head = session.head._replace(updated_at=updated[key])
        return receipt


@mutant(23, mistake="purge with an age of 0 leaves what was written in this instant")
class PurgeLeavesThisInstant(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        age = 0.001 if older_than == 0 else older_than
        return await super().remove(scope, older_than=age, dry_run=dry_run)


@mutant(23, mistake="purge without an age takes everything")
class PurgeTakesEverything(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        return await super().remove(scope, older_than=0 if older_than == inf else older_than, dry_run=dry_run)


@mutant(23, mistake="purge takes what lies above the scope, too")
class PurgeEverywhere(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        return await super().remove(scope if older_than is None else Scope(), older_than=older_than, dry_run=dry_run)


@mutant(23, mistake="erase takes the sessions that a listing shows, up to a hundred")
class EraseOfAPage(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        kept = dict([(key, session) for key, session in self.held.items() if scope.contains(key.scope)][100:])
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        self.held.update(kept)
        return receipt


@mutant(23, mistake="erase leaves the sessions that are being written to")
class EraseLeavesTheBusy(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        before = {key: session.head for key, session in self.held.items()}
        await meanwhile()
        busy = {key: session for key, session in self.held.items() if session.head is not before.get(key)}
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        self.held.update(busy if older_than is None else {})
        return receipt


# 24: service session ids


@mutant(24, mistake="one index of service session ids serves all scopes")
class ServiceIdsOfAllScopes(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        if SERVICE in listing.where:
            return await super().sessions(Scope(), listing._replace(below=True))
        return await super().sessions(scope, listing)


@mutant(24, mistake="a service session id is found through the scopes below, too")
class ServiceIdsBelow(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        return await super().sessions(scope, listing._replace(below=listing.below or SERVICE in listing.where))


@mutant(24, mistake="an id that is no session's is tried as a service session id")
class ServiceIdIsAKey(MemoryBackend):
    def live(self, key: Key) -> Session | None:
        if key.session and key not in self.held:
            wanted = json.dumps(key.session)
            names = [each for each, session in self.held.items() if session.head.meta.get(SERVICE) == wanted]
            key = next((each for each in names if each.scope == key.scope), key)
        return super().live(key)


@mutant(24, mistake="a mapping and its text are one service session id", place="chatkeep.metadata.service_entry")
def text_of_a_mapping(serializer: Any, service_session_id: Any) -> str:
    if isinstance(service_session_id, str) and service_session_id.startswith("{"):
        return service_session_id
    return service_entry(serializer, service_session_id)


@mutant(
    24, mistake="two mappings are the same if their members come in the same order", place="chatkeep.metadata.entry"
)
def members_in_order(serializer: Any, value: Any, path: str) -> str:
    return str(serializer.dumps(value, path=path).decode())


@mutant(24, mistake="a service session id is still found after the session has another")
class FormerServiceId(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        page = await super().sessions(scope, listing)
        if page.heads or SERVICE not in listing.where:
            return page
        former = getattr(self, "former", {}).get((scope, listing.where[SERVICE]))
        session = self.live(former) if former else None
        return HeadPage([session.head]) if session else page

    async def commit(self, key: Key, write: Write) -> Outcome:
        if write.meta and (service := write.meta.get(SERVICE)):
            self.former = {**getattr(self, "former", {}), (key.scope, service): key}
        return await super().commit(key, write)


@mutant(24, mistake="of several sessions with one service session id the first is found")
class FirstOfSeveral(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        if SERVICE not in listing.where:
            return await super().sessions(scope, listing)
        page = await super().sessions(scope, listing._replace(limit=10**6))
        return HeadPage(page.heads[-1:])
