"""The Redis backend: one script for each commit, and one for each reading, on connections that all calls share.

Order and atomicity come from Redis itself: it runs one script after the other, each of them whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from chatkeep import heads
from chatkeep.backend import Backend
from chatkeep.errors import CorruptRecordError, StoreClosedError, StoreError, StoreFormatError
from chatkeep.records import (
    Head,
    HeadPage,
    Health,
    Key,
    Listing,
    Receipt,
    RecordPage,
    Scope,
    Select,
    Span,
    StatePage,
    SweepReport,
    Write,
)
from chatkeep.url import StoreURL

from .catalogue import OLD, Catalogue, Entry
from .clients import Servers, check_client, client_maker
from .commands import Command
from .commits import Commit
from .failures import DRIVER_ERRORS, translated
from .keys import Keys, SessionKeys
from .options import RedisOptions
from .scripts import READ, REMOVE, STATE, Script
from .stored import (
    SECOND,
    bodies_of,
    bounds,
    check_layout,
    flat,
    head_of,
    life_of,
    microseconds,
    newer,
    record_of,
    state_bounds,
    state_entries,
    taken,
    text_of,
)

MEMORY = 600.0
"""For so many seconds after its last write, at least, a session remembers the tokens of its writes."""
REMOVED_AT_ONCE = 100
LOOKS = 10
"""A sweep looks at so many times the entries that it may take out."""
PLACES = 10_000
"""Of so many scopes it is remembered up to where their oldest entries were looked at."""

logger = logging.getLogger("chatkeep.redis")


class RedisBackend(Backend):
    driver_errors = DRIVER_ERRORS

    def __init__(self, url: StoreURL, options: RedisOptions, client: Any) -> None:
        if client is not None:
            check_client(client, url, options)
        self.place = str(url)
        self.prefix = options.prefix
        self.timeout = options.timeout
        self.connect_timeout = options.connect_timeout
        self.connections = options.connections
        self.wait_replicas = options.wait_replicas
        self.wait_timeout = options.wait_timeout
        self.keys = Keys(options.prefix)
        self.memory = int(max(MEMORY, 4 * options.timeout) * 1000)
        self._client = client
        self._make = client_maker(url, options) if client is None else None
        self._servers: Servers | None = None
        self.catalogue = Catalogue(self.keys, self.ask, self._time)
        self._swept = Scope()
        self._tidied: dict[Scope, int] = {}
        """How many of a scope's oldest entries were looked at and still have their sessions."""

    def translate(self, error: Exception) -> StoreError:
        return translated(error, self.place, self.prefix)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        if self._servers is not None and self._servers.loop is not loop:
            self._servers.abandon()
            self._servers = None
        if self._servers is None:
            self._servers = Servers(self._make() if self._make else self._client, self, ours=self._make is not None)
        await self._servers.prepare()
        keys = self.keys.session(Key(Scope(), ""))
        await self.ask(READ, (keys.head, keys.order), (), hopes=False)  # whether we are let in, and to our keys

    async def close(self) -> None:
        servers = self._servers
        if servers is None:
            return
        if servers.loop is asyncio.get_running_loop():
            await servers.close()
        else:
            servers.abandon()
        self._servers = None

    async def ping(self) -> Health:
        reply = await self.send(Command(None, (), ("HELLO",), _hello, self._future()))
        server, version, mode, role = (reply.get(name, "") for name in ("server", "version", "mode", "role"))
        if mode == "cluster" and self._servers is not None and not self._servers.cluster:
            raise StoreError(f"{self.place} is a node of a cluster: use a redis+cluster:// URL")
        name = {"redis": "Redis", "valkey": "Valkey"}.get(server, server)
        return Health("redis", f"{name} {version}", {"mode": mode, "role": role, "prefix": self.prefix})

    # Asking

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def send(self, command: Command) -> asyncio.Future[Any]:
        if self._servers is None:
            raise StoreClosedError(f"{self.place} was closed; nothing was written")
        self._servers.send(command)
        return command.future

    def ask(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Any],
        *,
        decode: Callable[[Any], Any] | None = None,
        writes: bool = False,
        hopes: bool = True,
        plain: Sequence[tuple[Any, ...]] = (),
    ) -> asyncio.Future[Any]:
        """What the script answers, or what `decode` makes of that."""
        return self.send(Command(script, keys, args, decode, self._future(), writes=writes, hopes=hopes, plain=plain))

    # Writing

    def commit(self, key: Key, write: Write) -> Commit:
        return Commit(self, key, write)

    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        """A session that a later version has written stays: all others are removed, and then it is told."""
        total = Receipt(dry_run=dry_run)
        layouts: list[bytes] = []
        began = await self.catalogue.time()
        for each in [each async for each in self.catalogue.scopes(scope)]:
            async for now, entries in self.catalogue.pages(each, REMOVED_AT_ONCE):
                found = await self._remove_sessions(each, entries, now, older_than, layouts, dry_run=dry_run)
                total = _sum(total, found)
            if older_than is None:
                keys = self.keys.session(Key(each, ""))
                _, _, state = await self._remove_one(keys, older_than, layouts, dry_run=dry_run)
                total = _sum(total, Receipt(state_keys=state))
            if not dry_run:
                await self._leave_if_empty(each, began)
        if layouts:
            raise newer(layouts[0])
        return total

    async def _leave_if_empty(self, scope: Scope, until: int) -> None:
        """Take the scope out of the list, if it has neither session nor state. `until` is a time before this look."""
        _, left = await self.catalogue.drop(scope, (), 0)
        if not left and not await self._is_there(Key(scope, "")):
            await self.catalogue.leave(scope, until)

    async def strike(self, key: Key) -> None:
        """Take a session that was deleted out of its catalogue, unless it has begun anew."""
        now, _ = await self.catalogue.drop(key.scope, (), 0)
        if not await self._is_there(key):
            await self.catalogue.drop(key.scope, [key.session], now)

    async def _remove_sessions(
        self,
        scope: Scope,
        entries: list[Entry],
        now: int,
        older_than: float | None,
        layouts: list[bytes],
        *,
        dry_run: bool,
    ) -> Receipt:
        """Remove those of the sessions that are old enough, and the entries of all that are not there any more."""
        found = await asyncio.gather(
            *(self._remove_one(self.keys.session(entry.key), older_than, layouts, dry_run=dry_run) for entry in entries)
        )
        removed = [answer for answer in found if answer[0] == 1]
        if not dry_run:
            answers = [(entry, answer[0]) for entry, answer in zip(entries, found, strict=True)]
            for entry, answer in answers:
                if answer != 0:
                    self.catalogue.forget(entry.key)
            # What is not there may be just about to begin: its entry stays while it is young.
            for what, until in ((1, now), (-1, now - OLD)):
                if gone := [entry.id for entry, answer in answers if answer == what and entry.updated <= until]:
                    await self.catalogue.drop(scope, gone, until)
        return Receipt(len(removed), sum(messages for _, messages, _ in removed), sum(state for _, _, state in removed))

    def _remove_one(
        self, keys: SessionKeys, older_than: float | None, layouts: list[bytes], *, dry_run: bool
    ) -> asyncio.Future[tuple[int, int, int]]:
        """Whether it is removed (1), or not there (-1), or to stay (0); its messages, its state keys.

        Where it stays since its layout is of a later version, that is added to the `layouts`.
        """

        def decode(reply: list[Any]) -> tuple[int, int, int]:
            if not reply:
                return -1, 0, 0
            if reply[0] == 2:
                layouts.append(reply[1])
            return (1, reply[1], reply[2]) if reply[0] == 1 else (0, 0, 0)

        age: Any = b"" if older_than is None else _age(older_than)
        args = (keys.name, age, "dry" if dry_run else "")
        return self.ask(REMOVE, keys.all, args, decode=decode, writes=not dry_run)

    async def sweep(self, budget: int = 100) -> SweepReport:
        """Redis has removed what has expired; what is left of it is its entries in the catalogues."""
        gone, looks, began = 0, LOOKS * budget, await self.catalogue.time()
        scopes = [each async for each in self.catalogue.scopes(Scope())]
        begin = next((place for place, each in enumerate(scopes) if each.address > self._swept.address), 0)
        for each in scopes[begin:] + scopes[:begin]:
            if gone >= budget or looks <= 0:
                break
            self._swept = each
            while gone < budget and looks > 0:
                most = budget - gone
                found, looked = await self.tidy(each, most)
                gone, looks = gone + found, looks - looked
                if looked < most:
                    break
            if found == looked:
                await self._leave_if_empty(each, began)
        return SweepReport(expired=gone)

    async def tidy(self, scope: Scope, most: int) -> tuple[int, int]:
        """Take out the entries of sessions that are not there any more; how many, and how many were looked at.

        Up to so many entries are looked at, the oldest first, and the next time those that come after them.
        """
        place = self._tidied.pop(scope, 0)
        now, entries = await self.catalogue.oldest(scope, most, place)
        there = await asyncio.gather(*(self._is_there(entry.key) for entry in entries))
        gone = [entry for entry, is_there in zip(entries, there, strict=True) if not is_there]
        old = [entry.id for entry in gone if entry.updated < now - OLD]
        if old:
            await self.catalogue.drop(scope, old, now - OLD)
        if len(entries) == most:
            self._tidied[scope] = place + most - len(old)
            if len(self._tidied) > PLACES:
                del self._tidied[next(iter(self._tidied))]
        return len(old), len(entries)

    # Reading

    def read(self, key: Key, log: str, span: Span) -> asyncio.Future[RecordPage]:
        keys = self.keys.session(key)
        before, low, high = bounds(log, span.after, span.before)
        limit = -1 if span.limit is None else span.limit
        whole = span.after is span.before is None
        # Whether there is more is counted, unless the head says how many there are.
        args = (before, low, high, limit, "newest" if span.newest else "", "" if whole else "count")

        def decode(reply: list[Any]) -> RecordPage:
            fields, *more_of_it = reply
            head = head_of(key, keys.name, flat(fields))
            if head is None:
                return RecordPage((), None)
            members, more = more_of_it[0], more_of_it[1] if len(more_of_it) > 1 else 0
            if whole and log in head.logs:
                size = head.logs[log].size
                more = size - len(members)
                self._check_all(key, log, size, len(members), span.limit)
            if span.newest:
                members.reverse()
            if span.bodies:
                return RecordPage((), head, more > 0, bodies_of(members, before))
            return RecordPage([record_of(member, before) for member in members], head, more > 0)

        plain: Any = ()
        if whole:  # without a script, the server need not turn what it finds into Lua's tables
            look = ("ZREVRANGEBYLEX", keys.order, high, low) if span.newest else ("ZRANGEBYLEX", keys.order, low, high)
            plain = (("HGETALL", keys.head), (*look, "LIMIT", 0, limit))
        return self.ask(READ, (keys.head, keys.order), args, decode=decode, plain=plain)

    def _check_all(self, key: Key, log: str, size: int, found: int, limit: int | None) -> None:
        """Whether a log is whole. It is not where the server has thrown away keys to free memory."""
        if found < (size if limit is None else min(size, limit)):
            raise StoreError(
                f"{heads.place(key, log)}: of {size} messages only {found} are found. Does {self.place} evict keys? "
                "Set its maxmemory-policy to noeviction, and restore a backup, or delete the session"
            )

    async def head(self, key: Key) -> Head | None:
        found: Head | None = await self._head(key)
        return found

    def _head(self, key: Key) -> asyncio.Future[Head | None]:
        keys = self.keys.session(key)
        return self.ask(
            READ, (keys.head, keys.order), (), decode=lambda reply: head_of(key, keys.name, reply[0] if reply else ())
        )

    def _is_there(self, key: Key) -> asyncio.Future[bool]:
        """Whether there is a session, or a scope's state, in whatever condition."""
        keys = self.keys.session(key)
        return self.ask(READ, (keys.head, keys.order), (), decode=lambda reply: bool(reply and reply[0]))

    async def state(self, key: Key, select: Select) -> StatePage:
        keys = self.keys.session(key)
        if select.keys is None:
            low, high = state_bounds(select.prefix, select.after)
            args: tuple[Any, ...] = ("range", low, high, -1 if select.limit is None else select.limit)
        else:
            args = ("keys", *(name.encode() for name in sorted(select.keys)))
        reply = await self.ask(STATE, (keys.head, keys.order, keys.values), args)
        if not reply:
            return StatePage((), None)
        head, name, more, *fields = reply
        check_layout(head)
        if name != keys.name:
            raise taken(key)
        return StatePage(state_entries(fields), life_of(head), more > 0)

    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        after = None
        if listing.after is not None:
            updated, session, address = heads.listing_after(listing.after)
            after = (updated * SECOND, session, address)
        wanted = listing.where.items()
        found: list[Head] = []
        waiting: list[Entry] = []
        walk = self.catalogue.walk(scope, below=listing.below, after=after)
        async for entry in walk:
            waiting.append(entry)
            if len(waiting) > max(listing.limit - len(found), 0):
                found += await self._live(waiting, wanted)
                waiting = []
            if len(found) > listing.limit:
                break
        found += await self._live(waiting, wanted)
        page = found[: listing.limit]
        return HeadPage(page, heads.listing_cursor(page[-1]) if len(page) < len(found) else None)

    async def _live(self, entries: list[Entry], wanted: Any) -> list[Head]:
        """The heads of those that are there, with the time by which they are listed, and match.

        One that is damaged, or of a later version, is left out, and is no reason to keep the others back.
        """
        there = await asyncio.gather(*(self._whole_head(entry.key) for entry in entries))
        return [
            head._replace(updated_at=entry.updated / SECOND)
            for entry, head in zip(entries, there, strict=True)
            if head is not None and wanted <= head.meta.items()
        ]

    async def _whole_head(self, key: Key) -> Head | None:
        try:
            return await self._head(key)
        except (CorruptRecordError, StoreFormatError) as error:
            logger.warning("a session is left out of a listing: %s", error)
            return None


def _hello(reply: Any) -> dict[str, Any]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {text_of(name): text_of(value) for name, value in pairs if isinstance(value, bytes)}


def _age(older_than: float) -> Any:
    return microseconds(older_than) if older_than < 1e9 * SECOND else "9e15"


def _sum(one: Receipt, other: Receipt) -> Receipt:
    return Receipt(
        one.sessions + other.sessions, one.messages + other.messages, one.state_keys + other.state_keys, one.dry_run
    )
