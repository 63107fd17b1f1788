"""The Claude Agent SDK (``claude-agent-sdk``) keeps its sessions in chatkeep: `ChatkeepSessionStore`.

A transcript is a session, a subagent's transcript a further log of it, an entry a message with the entry's uuid as its
id. The summary that the SDK lists transcripts by is metadata of the session, written in one atomic step with entries
behind the very tail that it was made for. One of another tail (an entry was redacted, others wrote) is made anew.
"""

from __future__ import annotations

import json
import time
from logging import getLogger
from typing import Any, cast

from chatkeep import ABSENT, ConflictError, CorruptRecordError, Cursor, Log, Session, SessionInfo
from chatkeep.arguments import check_id
from chatkeep.errors import DuplicateIdError
from chatkeep.metadata import META_BYTES
from chatkeep.records import Record

from .held_store import HeldStore
from .objects import ObjectCodec, check_json

try:
    from claude_agent_sdk import SessionKey, SessionStore, SessionStoreEntry, fold_session_summary
    from claude_agent_sdk.types import SessionListSubkeysKey, SessionStoreListEntry, SessionSummaryEntry
except ImportError as error:
    raise ImportError(
        "chatkeep_adapters.claude_agent needs claude-agent-sdk 0.1.66 or later: "
        "pip install 'chatkeep-adapters[claude-agent-sdk]'"
    ) from error

__all__ = ["ChatkeepSessionStore", "EntryCodec"]

PROJECT, SUMMARY = "claude_project", "claude_summary"
"""The metadata keys of a session: its project, which listings are filtered by, and its summary."""
SUMMARY_BYTES = META_BYTES // 2
"""A summary that is longer is not kept: each listing makes it anew."""
ATTEMPTS = 10
"""How often an append starts over because somebody else was quicker."""
logger = getLogger("chatkeep")


class EntryCodec(ObjectCodec):
    """For the entries of a transcript, of any shape."""

    name = "claude-entry"
    accepts = frozenset({"claude-entry/1"})
    id_member = "uuid"
    kept = ("type", "parentUuid", "logicalParentUuid", "sessionId", "timestamp", "isSidechain", "isMeta", "agentId")


_CODEC = EntryCodec()


class ChatkeepSessionStore(HeldStore, SessionStore):
    """Transcripts of the Claude Agent SDK: ``ClaudeAgentOptions(session_store=ChatkeepSessionStore(store))``.

    `store` is a store, a scope of one, or a connection URL; left out, the URL that `chatkeep.open_store` takes. All
    that name one URL with the same `options` in an event loop share one store, which `aclose` of the last of them
    closes; one that you pass in stays open. `app`, `tenant` and `user` narrow it: give each signed-in user a scope of
    their own, and no project key or session id leads out of it. Transcripts expire as the store's ``ttl`` says.
    """

    _latest = 0  # the newest mtime that was given out here

    def session(self, project_key: str, session_id: str) -> Session[dict[str, Any]]:
        """The chatkeep session of a transcript: to redact an entry, to verify it. No I/O."""
        id = _id(check_id(project_key, "project_key"), check_id(session_id, "session_id"))
        return self.view.session(check_id(id, "project_key and session_id together"), codec=_CODEC)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries, all of them or none. One whose uuid is stored already is not stored again, whatever it says.

        What is no JSON is a `SerializationError` that names its place; then nothing is written.
        """
        log = self._log(key)
        new: dict[object, Any] = {}
        for place, entry in enumerate(cast("list[Any]", entries)):
            check_json(entry, f"entries[{place}]")
            new.setdefault(_CODEC.id(entry) or object(), entry)
        if not isinstance(log, Session):
            await log.append(new.values())
            return
        for _ in range(ATTEMPTS):
            if not new:
                return
            info = await log.info()
            tail = info.tail if info else Cursor(ABSENT, 0)
            metadata = self._metadata(key, await self._summary(key, log, info), tail, list(new.values()))
            try:
                await log.append(new.values(), expected_tail=tail, on_conflict="strict", metadata=metadata)
            except DuplicateIdError as known:
                new = {uuid: entry for uuid, entry in new.items() if uuid not in known.seqs}
            except ConflictError:
                continue
            else:
                return
        if new:
            await log.append(new.values(), metadata=self._metadata(key, None, Cursor(ABSENT, -1), []))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The entries in the order in which they were stored; None if there are none.

        One that cannot be read is a `CorruptRecordError`, unless the store's ``on_corrupt`` leaves it out.
        """
        history: list[Any] = await self._log(key).messages()
        return [entry for entry in history if not isinstance(entry, Record)] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The project's transcripts and when each was last added to, in ms since 1970; the newest first."""
        return [{"session_id": id, "mtime": _kept(info)["mtime"]} for id, info in await self._infos(project_key)]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """What `fold_session_summary` makes of each of the project's transcripts, the newest first."""
        found = []
        for id, info in await self._infos(project_key):
            key: SessionKey = {"project_key": project_key, "session_id": id}
            summary = await self._summary(key, self._log(key), info, whole=True)
            if summary and summary["data"] is not None:
                found.append(summary)
        return found

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript with those of its subagents, or with a ``subpath`` that one alone."""
        log = self._log(key)
        await (log.delete() if isinstance(log, Session) else log.clear())

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a transcript, in order."""
        info = await self.session(key["project_key"], key["session_id"]).info()
        return sorted(name for name, log in info.logs.items() if name and log.size) if info else []

    def _log(self, key: SessionKey) -> Log[dict[str, Any]]:
        session = self.session(key["project_key"], key["session_id"])
        return session.log(check_id(key["subpath"], "subpath")) if "subpath" in key else session

    async def _infos(self, project_key: str) -> list[tuple[str, SessionInfo]]:
        """The project's transcripts that hold entries, by their session ids, the newest first."""
        found: dict[str, SessionInfo] = {}  # one that is written meanwhile may be on two pages
        wanted, after = {PROJECT: check_id(project_key, "project_key")}, None
        while True:
            page = await self.view.list_sessions(metadata=wanted, limit=1000, after=after)
            for info in page:
                id = _kept(info)["session_id"]
                if info.messages and info.id == _id(project_key, id):  # and no fork, which has its origin's metadata
                    found[id] = info
            if page.next is None:
                return sorted(found.items(), key=lambda each: _kept(each[1])["mtime"], reverse=True)
            after = page.next

    async def _summary(
        self, key: SessionKey, log: Log[Any], info: SessionInfo | None, *, whole: bool = False
    ) -> SessionSummaryEntry | None:
        """What the stored entries fold to, None if there are none; its data is None where that cannot be made, or was
        too long to keep and not the `whole` is wanted.
        """
        if info is None:
            return None
        kept, data = _kept(info), _kept(info)["data"]
        if (kept["seq"], kept["rewrite"]) != info.tail[1:] or (whole and data is None):
            try:
                data = _folded({}, key, await log.messages())
            except CorruptRecordError:
                data = None
        return {"session_id": key["session_id"], "mtime": kept["mtime"], "data": data}

    def _metadata(
        self, key: SessionKey, before: SessionSummaryEntry | None, tail: Cursor, new: list[Any]
    ) -> dict[str, Any]:
        """What an append of `new` behind `tail` makes of the session's metadata."""
        self._latest = max(int(time.time() * 1000), self._latest + 1, before["mtime"] + 1 if before else 0)
        data = _folded(before["data"] if before else {}, key, new)
        if len(json.dumps(data)) > SUMMARY_BYTES:
            data = None
        place = {"session_id": key["session_id"], "seq": tail.seq + len(new), "rewrite": tail.rewrite}
        return {PROJECT: key["project_key"], SUMMARY: {**place, "mtime": self._latest, "data": data}}


def _id(project_key: str, session_id: str) -> str:
    """The chatkeep session's id: no two transcripts have one in common, whatever their names hold."""
    return json.dumps([project_key, session_id], ensure_ascii=False, separators=(",", ":"))


def _kept(info: SessionInfo) -> dict[str, Any]:
    """The summary that is kept; one of no transcript where nothing was written by this module."""
    nothing: dict[str, Any] = {"session_id": None, "seq": -1, "rewrite": 0, "mtime": 0, "data": {}}
    return cast("dict[str, Any]", info.metadata.get(SUMMARY, nothing))


def _folded(data: dict[str, Any] | None, key: SessionKey, entries: list[Any]) -> dict[str, Any] | None:
    """The summary's data after these entries; None where it is not known before, or the SDK fails on one of them."""
    if data is None:
        return None
    try:
        return fold_session_summary({"session_id": key["session_id"], "mtime": 0, "data": data}, key, entries)["data"]
    except Exception:  # a summary that fails must not cost the entries
        logger.warning("no summary of transcript %r: the SDK fails on its entries", key["session_id"], exc_info=True)
        return None
