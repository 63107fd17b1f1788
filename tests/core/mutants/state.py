"""Mistakes against clauses 20 and 21: versions that come again, keys that are lost, snapshots of half a session."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from chatkeep import ConflictError, SessionSnapshot, heads
from chatkeep.memory import MemoryBackend
from chatkeep.records import (
    Expiry,
    Head,
    HeadPage,
    Key,
    Listing,
    Outcome,
    Receipt,
    Scope,
    Select,
    StateEntry,
    StatePage,
    Write,
)
from chatkeep.session import Session as StoreSession
from chatkeep.state import State

from . import meanwhile, mutant, swapped

state_changes = heads.state_changes
restore = StoreSession.restore
snapshot_of = StoreSession.snapshot
commit_state = State._commit


# 20: state


@mutant(
    20, mistake="a version is a digest of the value, and comes again with it", place="chatkeep.records.Write.version"
)
def version_of_the_value(self: Write, index: int) -> str:
    return blake2b(self.state[index].value or b"", digest_size=8).hexdigest()


@mutant(
    20, mistake="versions are counted for each key, from 1 again after a deletion", place="chatkeep.heads.state_changes"
)
def versions_are_counted(write: Write, current: Mapping[str, StateEntry]) -> dict[str, StateEntry | None]:
    return {
        key: entry and entry._replace(version=str(int(current[key].version) + 1 if key in current else 1))
        for key, entry in state_changes(write, current).items()
    }


@mutant(
    20,
    mistake="an expected version is compared where the key is there, and not where it is absent",
    place="chatkeep.heads.state_changes",
)
def absent_is_any_version(write: Write, current: Mapping[str, StateEntry]) -> dict[str, StateEntry | None]:
    operations = [each if each.key in current else each._replace(expected=None) for each in write.state]
    return state_changes(write._replace(state=operations), current)


@mutant(20, mistake="expected=ABSENT is taken for no expectation", place="chatkeep.heads.state_changes")
def absent_is_no_expectation(write: Write, current: Mapping[str, StateEntry]) -> dict[str, StateEntry | None]:
    operations = [each._replace(expected=each.expected or None) for each in write.state]
    return state_changes(write._replace(state=operations), current)


@mutant(20, mistake="a deletion takes no notice of the expected version", place="chatkeep.heads.state_changes")
def deletes_any_version(write: Write, current: Mapping[str, StateEntry]) -> dict[str, StateEntry | None]:
    operations = [each if each.value is not None else each._replace(expected=None) for each in write.state]
    return state_changes(write._replace(state=operations), current)


@mutant(20, mistake="a conflict does not say the current version", place="chatkeep.heads.state_conflict")
def conflict_without_a_version(key: str, version: str | None, expected: str | None) -> Exception:
    return ConflictError(f"state key {key!r} has another version")


@mutant(20, mistake="an expected version is compared before the write, in a step of its own")
class VersionComparedBefore(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        if write.state and session:
            heads.state_changes(write, session.state)
            await meanwhile()
            write = write._replace(state=[each._replace(expected=None) for each in write.state])
        return await super().commit(key, write)


@mutant(20, mistake="the state is read, changed and written back whole")
class StateWrittenBackWhole(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        if write.state and session:
            state = dict(session.state)
            await meanwhile()
            session.state = state
        return await super().commit(key, write)


@mutant(20, mistake="keys are listed in the order in which they were set")
class KeysInOrderOfSetting(MemoryBackend):
    async def state(self, key: Key, select: Select) -> StatePage:
        page = await super().state(key, select)
        session = self.live(key)
        places = {name: place for place, name in enumerate(session.state if session else {})}
        return page._replace(entries=sorted(page.entries, key=lambda entry: places[entry.key]))


@mutant(20, mistake="keys are ordered by their UTF-16 units, as some languages compare texts")
class KeysInOrderOfUtf16(MemoryBackend):
    async def state(self, key: Key, select: Select) -> StatePage:
        page = await super().state(key, select)
        return page._replace(entries=sorted(page.entries, key=lambda entry: entry.key.encode("utf-16-be")))


@mutant(20, 22, mistake="a prefix is a pattern: % and _ stand for anything")
class PrefixIsAPattern(MemoryBackend):
    async def state(self, key: Key, select: Select) -> StatePage:
        if select.keys is not None or not set("%_") & set(select.prefix):
            return await super().state(key, select)
        page = await super().state(key, Select())
        plain = select.prefix.partition("%")[0].partition("_")[0]
        return page._replace(entries=[entry for entry in page.entries if entry.key.startswith(plain)])


@mutant(20, mistake="a listing of keys ends at a thousand, and nobody asks for the rest")
class ThousandKeys(MemoryBackend):
    async def state(self, key: Key, select: Select) -> StatePage:
        page = await super().state(key, select)
        return page._replace(entries=page.entries[:1000])


@mutant(20, mistake="a value has 400 KB at most")
class ValueOf400Kb(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if any(len(each.value or b"") > 400_000 for each in write.state):
            raise ConflictError("an item is larger than 400 KB")
        return await super().commit(key, write)


@mutant(20, mistake="entries are read in pages, each from another instant")
class EntriesFromTwoInstants(MemoryBackend):
    async def state(self, key: Key, select: Select) -> StatePage:
        first = await super().state(key, select._replace(limit=100))
        if not first.more:
            return first
        rest = await super().state(key, select._replace(after=first.entries[-1].key))
        return rest._replace(entries=[*first.entries, *rest.entries])


@mutant(20, mistake="deleting what is not there makes a session", place="chatkeep.state.State._commit")
async def deleting_makes_a_session(self: State, operations: Any, *, must_exist: bool = False) -> Any:
    return await commit_state(self, operations)


@mutant(20, mistake="None as a value is a deletion", place="chatkeep.heads.state_changes")
def none_is_a_deletion(write: Write, current: Mapping[str, StateEntry]) -> dict[str, StateEntry | None]:
    changes = state_changes(write, current)
    return {key: None if entry and entry.value == b"null" else entry for key, entry in changes.items()}


@mutant(20, mistake="the state of a scope expires as a session does", place="chatkeep.heads.renewed")
def scopes_expire(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    ttl = expiry.ttl or head.ttl or (2.0 if not head.key.session else None)
    return ttl, ttl and now + ttl


@mutant(20, mistake="a key that is not there is looked for in the scope above")
class StateIsInherited(MemoryBackend):
    async def state(self, key: Key, select: Select) -> StatePage:
        page = await super().state(key, select)
        depth = key.scope.depth
        if page.entries or key.session or not depth or select.keys is None:
            return page
        return await self.state(Key(Scope(*key.scope[: depth - 1]), ""), select)


@mutant(20, mistake="erase leaves the state of the scope")
class EraseLeavesState(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        kept = {key: session for key, session in self.held.items() if not key.session}
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        self.held.update(kept)
        return receipt


@mutant(20, 23, mistake="purge takes the state of scopes, too")
class PurgeTakesState(MemoryBackend):
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        receipt = await super().remove(scope, older_than=older_than, dry_run=dry_run)
        for key in [key for key in self.held if not key.session and scope.contains(key.scope)]:
            if older_than == 0 and not dry_run:
                del self.held[key]
        return receipt


# 21: snapshots, title and metadata


@mutant(21, mistake="a snapshot has no service session id", place="chatkeep.session.Session.snapshot")
async def snapshot_without_a_service_id(self: Any) -> SessionSnapshot:
    whole = await snapshot_of(self)
    return SessionSnapshot(whole.session_id, None, whole.state, whole.metadata, whole.title)


@mutant(21, mistake="a snapshot has the first 500 state keys", place="chatkeep.session.Session.snapshot")
async def snapshot_of_500_keys(self: Any) -> SessionSnapshot:
    whole = await snapshot_of(self)
    state = dict(list(whole.state.items())[:500])
    return SessionSnapshot(whole.session_id, whole.service_session_id, state, whole.metadata, whole.title)


@mutant(
    21,
    mistake="restoring leaves the state keys that the snapshot does not have",
    place="chatkeep.session.Session.restore",
)
async def restore_merges_state(self: Any, snapshot: SessionSnapshot) -> None:
    state = {**await self.state.items(), **snapshot.state}
    await restore(self, SessionSnapshot(self.id, snapshot.service_session_id, state, snapshot.metadata, snapshot.title))


@mutant(
    21,
    mistake="restoring leaves the metadata that the snapshot does not have",
    place="chatkeep.session.Session.restore",
)
async def restore_merges_metadata(self: Any, snapshot: SessionSnapshot) -> None:
    info = await self.info()
    known = {**(info.metadata if info else {}), **snapshot.metadata}
    await restore(self, SessionSnapshot(self.id, snapshot.service_session_id, snapshot.state, known, snapshot.title))


@mutant(21, mistake="restoring begins a new session, without the messages", place="chatkeep.session.Session.restore")
async def restore_begins_anew(self: Any, snapshot: SessionSnapshot) -> None:
    await self.delete()
    await restore(self, snapshot)


@mutant(
    21,
    mistake="a snapshot's bytes are plain JSON, and types are lost",
    place="chatkeep.snapshot.SessionSnapshot.to_bytes",
)
def snapshot_of_plain_json(self: SessionSnapshot, serializer: Any) -> bytes:
    return json.dumps(self.to_dict(), default=str).encode()


@mutant(21, mistake="a snapshot's version is not looked at", place="chatkeep.snapshot._check_format")
def any_snapshot(form: Any) -> None:
    return None


@mutant(21, mistake="an update puts new metadata in the place of the old", place="chatkeep.heads.merged")
def metadata_is_replaced(meta: Mapping[str, str], changes: Mapping[str, str | None] | None) -> Mapping[str, str]:
    if changes is None:
        return meta
    kept = {} if any(name.startswith("m:") for name in changes) else meta
    return {name: value for name, value in {**kept, **changes}.items() if value is not None}


@mutant(21, mistake="None removes nothing", place="chatkeep.heads.merged")
def none_removes_nothing(meta: Mapping[str, str], changes: Mapping[str, str | None] | None) -> Mapping[str, str]:
    return {**meta, **{name: value for name, value in (changes or {}).items() if value is not None}}


@mutant(21, mistake="metadata is read, changed and written back whole")
class MetadataWrittenBackWhole(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        if write.meta and session:
            meta = session.head.meta
            await meanwhile()
            session.head = session.head._replace(meta=meta)
        return await super().commit(key, write)


@mutant(21, mistake="a filter finds what has any of its entries")
class AnyEntryWillDo(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        page = await super().sessions(scope, listing._replace(where={}, limit=10**6))
        where = listing.where.items()
        found = [head for head in page.heads if not where or head.meta.items() & where]
        return page._replace(heads=found[: listing.limit])


@mutant(21, mistake="a filter is applied to the page and not to the listing")
class FilteredAfterPaging(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        page = await super().sessions(scope, listing._replace(where={}))
        found = [head for head in page.heads if head.meta.items() >= listing.where.items()]
        return page._replace(heads=found, next=page.next if len(found) == listing.limit else None)


@mutant(21, mistake="a filter compares texts, and 1 is '1'")
class ComparedAsTexts(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        page = await super().sessions(scope, listing._replace(where={}, limit=10**6))
        where = {name: text.strip('"') for name, text in listing.where.items()}.items()
        found = [
            head for head in page.heads if {name: text.strip('"') for name, text in head.meta.items()}.items() >= where
        ]
        return page._replace(heads=found[: listing.limit])


@mutant(21, mistake="a filter finds titles that begin with it")
class TitleByPrefix(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        title = listing.where.get("title")
        if title is None:
            return await super().sessions(scope, listing)
        rest = {name: text for name, text in listing.where.items() if name != "title"}
        page = await super().sessions(scope, listing._replace(where=rest))
        return page._replace(heads=[head for head in page.heads if head.meta.get("title", "").startswith(title)])


@mutant(21, mistake="a snapshot of what is not there makes it", place="chatkeep.session.Session.snapshot")
async def snapshot_makes_a_session(self: Any) -> SessionSnapshot:
    await self.commit(Write(os.urandom(16)))
    return await snapshot_of(self)


swapped(
    "NoLimitOfMetadata",
    21,
    mistake="an update may hold any amount of metadata",
    place="chatkeep.metadata.META_BYTES",
    value=10**9,
)
