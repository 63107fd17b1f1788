"""One call of everything that a store can do and has to wait for, and all that there is to see of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Self

from chatkeep import ChatMessage, Session, Store, Window
from chatkeep.records import Key, Write
from chatkeep.snapshot import SessionSnapshot

from .harness import texts, turn
from .order import batch


class Place:
    """A scope of its own with a little of everything in it, as `store` reaches it."""

    def __init__(self, store: Store[ChatMessage], tenant: str) -> None:
        self.store = store
        self.tenant = tenant
        self.scope = store.scoped(tenant=tenant)
        self.session = self.scope.session("s")
        self.aside = self.session.log("aside")
        self.lease = self.scope.session("held").lease()
        """Of another session, entered."""

    async def fill(self) -> Self:
        """Write what every place holds."""
        call = {"id": "call", "name": "look_up", "arguments": "{}"}
        service = {"service_session_id": "resp"}
        await self.session.append([*turn(1), *turn(2)])
        await asyncio.gather(
            self.aside.append([ChatMessage.assistant(tool_calls=[call])]),
            self.session.state.update({"k": 1, "l": 2}),
            self.session.update(title="Bag", metadata={"topic": "bags"}, service_session_id=service),
            self.scope.state.set("k", 1),
            self.lease.__aenter__(),
        )
        return self

    def through(self, store: Store[ChatMessage]) -> Place:
        """The same place, as another store reaches it; the lease stays the one that was entered."""
        place = Place(store, self.tenant)
        place.lease = self.lease
        return place


async def seen(store: Store[ChatMessage], tenant: str) -> dict[str, Any]:
    """All that there is to see in a place."""
    scope = store.scoped(tenant=tenant)

    async def look(session: Session[ChatMessage]) -> tuple[Any, ...]:
        key = Key(session.scope, session.id)
        main, aside, state, head = await asyncio.gather(
            session.messages(),
            session.log("aside").messages(),
            session.state.items(),
            store.connection.read(store.backend.head, key),
        )
        held = head is not None and head.lease is not None
        return texts(main), main.seqs, texts(aside), aside.seqs, state, held

    page = await scope.list_sessions(limit=10)
    looks = await asyncio.gather(*(look(scope.session(info.id)) for info in page))
    found: dict[str, Any] = {
        info.id: (info.title, info.metadata, info.service_session_id, look)
        for info, look in zip(page, looks, strict=True)
    }
    return {**found, "": await scope.state.items()}


Operation = Callable[[Place], Awaitable[object]]


async def _stream(place: Place) -> list[ChatMessage]:
    return [message async for message in place.session.stream()]


async def _iterate(place: Place) -> list[str]:
    return [info.id async for info in place.scope.iter_sessions()]


async def _work_under_a_lease(place: Place) -> None:
    async with place.session.lease() as guarded:
        await guarded.append(batch("guarded"))


def _snapshot(place: Place) -> SessionSnapshot:
    return SessionSnapshot("s", "other", {"k": 2, "m": 3}, {"topic": "hats"}, "Hat")


OPERATIONS: dict[str, Operation] = {
    "Store.open": lambda place: place.store.open(),
    "Store.ping": lambda place: place.store.ping(),
    "Store.sweep": lambda place: place.store.sweep(),
    "Store.renew": lambda place: place.store.renew(Key(place.scope.scope, "s")),
    "ScopedStore.list_sessions": lambda place: place.scope.list_sessions(title="Bag", below=True),
    "ScopedStore.iter_sessions": _iterate,
    "ScopedStore.find_by_service_id": lambda place: place.scope.find_by_service_id({"service_session_id": "resp"}),
    "ScopedStore.restore": lambda place: place.scope.restore(_snapshot(place)),
    "ScopedStore.erase": lambda place: place.scope.erase(),
    "ScopedStore.purge": lambda place: place.scope.purge(0),
    "Session.info": lambda place: place.session.info(),
    "Session.exists": lambda place: place.session.exists(),
    "Session.update": lambda place: place.session.update(title="Hat", metadata={"topic": None}),
    "Session.delete": lambda place: place.session.delete(),
    "Session.fork": lambda place: place.session.fork("branch", upto=2),
    "Session.snapshot": lambda place: place.session.snapshot(),
    "Session.restore": lambda place: place.session.restore(_snapshot(place)),
    "LogReader.messages": lambda place: place.session.messages(),
    "LogReader.messages in a window": lambda place: place.session.messages(window=Window(max_messages=4)),
    "LogReader.stream": _stream,
    "LogReader.count": lambda place: place.session.count(),
    "LogReader.records": lambda place: place.session.records(),
    "Log.append": lambda place: place.session.append(batch("a")),
    "Log.append of nothing": lambda place: place.session.append([], expected_tail=4),
    "Log.append with a batch id": lambda place: place.session.append(batch("a"), batch_id="a"),
    "Log.append to a new session": lambda place: place.scope.session("new").append(batch("a")),
    "Log.pop": lambda place: place.session.pop(3),
    "Log.truncate_after": lambda place: place.session.truncate_after(1),
    "Log.replace_prefix": lambda place: place.session.replace_prefix(3, [ChatMessage.system("summary")]),
    "Log.clear": lambda place: place.session.clear(),
    "Log.replace": lambda place: place.session.replace(2, ChatMessage.assistant("edited")),
    "Log.redact": lambda place: place.session.redact(1),
    "Log.verify": lambda place: place.aside.verify(),
    "Log.repair": lambda place: place.aside.repair(),
    "Log.commit": lambda place: place.session.commit(Write(os.urandom(16), truncate_after=3)),
    "State.get": lambda place: place.session.state.get("k"),
    "State.entry": lambda place: place.session.state.entry("k"),
    "State.set": lambda place: place.session.state.set("k", 2),
    "State.set in a scope": lambda place: place.scope.state.set("k", 2),
    "State.update": lambda place: place.session.state.update({"k": 2, "l": 3, "m": 4}),
    "State.delete": lambda place: place.session.state.delete("k"),
    "State.keys": lambda place: place.session.state.keys(),
    "State.items": lambda place: place.session.state.items(),
    "Lease.__aenter__": lambda place: place.session.lease().__aenter__(),
    "Lease.__aenter__ and work": _work_under_a_lease,
    "Lease.renew": lambda place: place.lease.renew(),
    "Lease.__aexit__": lambda place: place.lease.__aexit__(None, None, None),
}
"""One call of everything that can wait: a method's name, and where there are several calls of it, what is special."""

CLOSINGS: dict[str, Callable[[Store[ChatMessage]], Awaitable[object]]] = {
    "Store.close": lambda store: store.close(),
    "Store.__aenter__": lambda store: store.__aenter__(),
    "Store.__aexit__": lambda store: store.__aexit__(None, None, None),
}
"""Those after which, cancelled, the store is closed."""
