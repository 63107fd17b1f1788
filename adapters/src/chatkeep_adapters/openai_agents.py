"""The OpenAI Agents SDK (``openai-agents``) keeps its sessions in chatkeep: `ChatkeepSession`.

A session of the SDK is a session of the store, an item a message: a user's message starts a turn, a call, its output
or a model's reasoning never does. The SDK's compaction session finds here what it needs to replace a history in one
step: methods of its own, whose names begin with an underscore.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from chatkeep import (
    ConflictError,
    CorruptRecordError,
    History,
    ScopedStore,
    Session,
    Window,
)
from chatkeep.arguments import check_id
from chatkeep.records import Record
from chatkeep.windows import check_window

from .held_store import HeldStore
from .response_items import ItemCodec

try:
    from agents.memory import SessionSettings
except ImportError as error:
    raise ImportError(
        "chatkeep_adapters.openai_agents needs openai-agents 0.19 or later: "
        "pip install 'chatkeep-adapters[openai-agents]'"
    ) from error
if TYPE_CHECKING:
    from agents import RunContextWrapper, TResponseInputItem

__all__ = ["ChatkeepSession", "ItemCodec"]

Items = list[dict[str, Any]]
_COMPACTING: ContextVar[Mapping[Any, History[dict[str, Any]]]] = ContextVar("_COMPACTING")
"""What this task has read to compact it, by session: what another task reads meanwhile may hold more."""


class ChatkeepSession(HeldStore):
    """A conversation of the OpenAI Agents SDK: ``Runner.run(agent, "Where is my bag?", session=ChatkeepSession(…))``.

    `store` is a store, a scope of one, or a connection URL; left out, the URL that `chatkeep.open_store` takes. All
    that name one URL with the same `options` in an event loop share one store, which `aclose` of the last of them
    closes; one that you pass in stays open. `app`, `tenant` and `user` narrow it: give each signed-in user a scope of
    their own, and no session id leads out of it.

    A `limit`, of a call or of the `session_settings`, counts items, as in the SDK's own sessions, and may cut a tool's
    output from its call. Where there is none, `window` says how much of the history is read: whole turns. With
    `unique_ids` an item whose id the session holds is not stored again.
    """

    def __init__(
        self,
        store: ScopedStore[Any] | str | None = None,
        *,
        session_id: str,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        window: Window[dict[str, Any]] | None = None,
        unique_ids: bool = False,
        app: str | EllipsisType = ...,
        tenant: str | EllipsisType = ...,
        user: str | EllipsisType = ...,
        **options: Any,
    ) -> None:
        super().__init__(store, app=app, tenant=tenant, user=user, **options)
        self.session_id = check_id(session_id, "session_id")
        settings = SessionSettings(**session_settings) if isinstance(session_settings, dict) else session_settings
        self.session_settings: SessionSettings | None = settings or SessionSettings()
        if window is not None:
            check_window(window)
        self.window = window
        self._codec = ItemCodec(unique_ids=unique_ids)

    def session(self) -> Session[dict[str, Any]]:
        """The chatkeep session that holds the conversation: for its title, to redact, to verify. No I/O."""
        return self.view.session(self.session_id, codec=self._codec)

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """The newest `limit` items, oldest first; all of them, or what fits the window, where there is no limit.

        One that cannot be read is a `CorruptRecordError`, unless the store's ``on_corrupt`` leaves it out.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None and self.window is not None:
            return _items(self._paired(await self.session().messages(window=self.window)))
        return _items(await self.session().messages(limit))

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Add items, all of them or none. What is no JSON is a `SerializationError` that names its place."""
        if items:
            await self.session().append(cast("Items", items))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Take out the newest item and return it; None if there is none. No two callers get the same one.

        One that cannot be read is a `CorruptRecordError`, and stays.
        """
        while True:
            newest: History[Any] = await self.session().messages(1)
            if newest and isinstance(newest[0], Record):
                raise CorruptRecordError("the newest item cannot be read, and is left where it is", record=newest[0])
            try:
                popped = await self.session().pop(expected_tail=newest.tail)
            except ConflictError:
                continue
            return cast("TResponseInputItem", popped[0]) if popped else None

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Take out every item, in one step. Title, state and metadata of the session stay."""
        await self.session().clear()

    def _paired(self, history: Items) -> Items:
        """Without the outputs whose calls are not there: another turn may stand between a call and its output."""
        made = {call for item in history for call in self._codec.links(item).made}
        return [item for item in history if made.issuperset(self._codec.links(item).answered)]

    # What the SDK's OpenAIResponsesCompactionSession asks for, by these names

    async def _read_compaction_items(self, limit: int | None) -> tuple[list[TResponseInputItem], bool]:
        history = await self.session().messages(limit)
        _COMPACTING.set(WeakKeyDictionary({**_COMPACTING.get({}), self: history}))
        return _items(history), not history.more

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Put the items in the place of those that were read for them; what was added since then stays."""
        history = _COMPACTING.get({}).get(self)
        if not history:  # a session around this one has read for it, by get_items
            return False
        if _damaged(history):
            raise CorruptRecordError("an item cannot be read, and a compaction would lose it: session().repair()")
        await self.session().replace_prefix(history.end, cast("Items", items))
        return True

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> _Snapshot:
        history = await self.session().messages(limit)

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            if len(output) > len(history) - start:
                return False
            try:
                older = await self.session().messages(before=history.start, limit=None if history.more else 0)
                if _damaged(older):
                    return False
                kept = [*older, *history[:start], *cast("Items", output)]
                await self.session().replace_prefix(history.end, kept)
            except (ConflictError, CorruptRecordError):
                return False
            return True

        return _Snapshot([] if _damaged(history) else _items(history), not history.more, replace_suffix)


class _Snapshot(NamedTuple):
    items: list[TResponseInputItem]
    complete: bool
    replace_suffix: Callable[[int, list[TResponseInputItem]], Awaitable[bool]]


def _items(history: list[Any]) -> list[TResponseInputItem]:
    return cast("list[TResponseInputItem]", [item for item in history if not isinstance(item, Record)])


def _damaged(history: History[Any]) -> bool:
    return history.skipped > 0 or any(isinstance(item, Record) for item in history)
