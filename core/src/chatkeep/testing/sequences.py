"""Random sequences of every operation, by two stores on one database, held against a plain model."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine, Sequence
from operator import le
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from chatkeep import ChatMessage, Cursor, History, Receipt, Session, SessionSnapshot, Store, Window
from chatkeep.errors import ChatkeepError, ConflictError, MessageNotFoundError
from chatkeep.lease import Lease
from chatkeep.metadata import SessionInfo
from chatkeep.records import ABSENT, Key, Record, Scope, Write

from .clauses import clause
from .examples import Examples
from .harness import Harness, Opener, commit_raw, identical, texts
from .model import At, Info, Page, RefusedError, World

EXAMPLES, STEPS = 5, 40
"""How many sequences, of how many steps at most, each pair of stores is tried with by default."""
LIMIT = 64
"""How many worlds are kept that the backend may be in, where writes at one time leave it open."""
EXACT = 60.0
"""How exact the time of a last write is, in seconds (clause 23)."""
TTL, AGE, LEASE = 100_500.0, 50_500.0, 30_500.0
"""Seconds; the clock moves in whole thousands, so that nothing is ever exactly over."""

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "max_messages": ({"max_messages": 3, "remember_ids": 2}, {"max_messages": 5, "remember_ids": 2}),
    "max_age": ({"max_age": AGE, "ttl": TTL}, {"max_age": AGE, "remember_ids": 1}),
    "ttl by reading": ({"ttl": TTL, "ttl_policy": "read"}, {"ttl": TTL, "ttl_policy": "read", "max_messages": 9}),
    "fixed ttl": ({"ttl": TTL, "ttl_policy": "fixed"}, {"ttl": TTL, "ttl_policy": "fixed", "max_messages": 0}),
    "damage": ({"on_corrupt": "skip", "max_messages": 6}, {"on_corrupt": "raise"}),
    "raw damage": ({"on_corrupt": "raw"}, {"on_corrupt": "raw", "max_messages": 2, "ttl": TTL}),
}
"""Of the two stores."""


class Target(NamedTuple):
    """What an operation is called on: by which store, under which of the session's leases, if there is one."""

    store: int
    scope: str
    session: str
    log: str
    lease: int | None


class Nth(NamedTuple):
    """The n-th newest of the cursors that the session gave, or of all versions; ABSENT where there is none."""

    n: int


class Held(NamedTuple):
    """The seq of the n-th newest message that the log holds; 1 if it is empty."""

    n: int


class Call(NamedTuple):
    operation: str
    target: Target
    arguments: dict[str, Any]


# What may be called

USERS = ("", "", "alice")
SESSIONS, LOGS, KEYS = ("s", "s", "t"), ("", "", "side"), ("k", "k1", "l")
TARGETS = st.builds(
    Target,
    st.integers(0, 1),
    st.sampled_from(USERS),
    st.sampled_from(SESSIONS),
    st.sampled_from(LOGS),
    st.sampled_from([None, None, None, 0, 1]),
)
IDS = st.sampled_from([None, None, None, "a", "b", "c", "d"])
TEXTS = st.sampled_from(["one", "two", "three"])
CALLS = st.sampled_from(["c1", "c2"])


def user(text: str, id: str | None) -> ChatMessage:
    return ChatMessage.user(text, id=id)


def assistant(text: str, id: str | None) -> ChatMessage:
    return ChatMessage.assistant(text, id=id)


def calling(call: str, id: str | None) -> ChatMessage:
    return ChatMessage.assistant(tool_calls=[{"id": call, "name": "f", "arguments": {"x": 1}}], id=id)


def answering(call: str, text: str, id: str | None) -> ChatMessage:
    return ChatMessage.tool(text, tool_call_id=call, id=id)


MESSAGE = st.one_of(
    st.builds(user, TEXTS, IDS),
    st.builds(user, TEXTS, IDS),
    st.builds(assistant, TEXTS, IDS),
    st.builds(calling, CALLS, IDS),
    st.builds(answering, CALLS, TEXTS, IDS),
)
NTH = st.builds(Nth, st.sampled_from([0, 0, 1, 1, 2, 3, 5, 8, 13]))
HELD = st.builds(Held, st.sampled_from([0, 1, 1, 2, 3, 5]))
PLACE = st.one_of(NTH, NTH, HELD, HELD, st.sampled_from([-1, 0, 1, 5, 2**40]))
EXPECTED_TAIL = st.one_of(st.none(), st.none(), NTH, HELD, st.just(0))
EXPECTED_VERSION = st.one_of(st.none(), st.none(), st.just(ABSENT), NTH, NTH)
VALUE = st.sampled_from([1, "text", None, [1, {"a": 2}]])
METADATA = st.dictionaries(st.sampled_from(["m", "n"]), st.sampled_from([None, 1, "x", {"b": 1, "a": [2]}]), max_size=2)
TITLE = st.sampled_from([None, "one", "two"])
SERVICE = st.sampled_from([None, "resp_1", {"id": 1}])
COUNT = st.sampled_from([1, 1, 2, 3, 50])
PREFIX = st.sampled_from(["", "k", "k1", "z"])


def _call(operation: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.builds(Call, st.just(operation), TARGETS, st.fixed_dictionaries(arguments))


APPEND = _call("append", messages=st.lists(MESSAGE, min_size=1, max_size=4))
CONDITIONAL_APPEND = _call(
    "append",
    messages=st.lists(MESSAGE, max_size=4),
    expected_tail=EXPECTED_TAIL,
    on_conflict=st.sampled_from(["keep", "replace", "error", "strict"]),
)
BATCH = _call(
    "append",
    messages=st.lists(MESSAGE, min_size=1, max_size=3),
    batch_id=st.sampled_from(["b1", "b2", "b3"]),
    expected_tail=EXPECTED_TAIL,
)
POP = _call("pop", count=COUNT, expected_tail=EXPECTED_TAIL)
TRUNCATE = _call("truncate_after", seq=PLACE)
REPLACE_PREFIX = _call("replace_prefix", upto=PLACE, messages=st.lists(MESSAGE, max_size=2))
CLEAR = _call("clear")
REPLACE = _call("replace", seq=st.one_of(HELD, HELD, HELD, PLACE), message=MESSAGE)
REDACT = _call("redact", seq=st.one_of(HELD, HELD, HELD, PLACE))
SET = _call("set", key=st.sampled_from(KEYS), value=VALUE, expected=EXPECTED_VERSION)
SET_SEVERAL = _call("set_several", values=st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=3))
REMOVE = _call("remove", key=st.sampled_from(KEYS), expected=EXPECTED_VERSION)
UPDATE = _call("update", title=TITLE, metadata=METADATA, service_session_id=SERVICE)
UPDATE_METADATA = _call("update", metadata=METADATA)
DELETE = _call("delete")
FORK = _call("fork", new_id=st.sampled_from(["s", "t", "u"]), upto=st.one_of(st.none(), PLACE))
MESSAGES = _call(
    "messages",
    after=st.one_of(st.none(), PLACE),
    before=st.one_of(st.none(), PLACE),
    limit=st.sampled_from([None, 0, 1, 2, 5]),
)
LAST = _call("messages", last=st.sampled_from([0, 1, 2, 5, 2**62]))
WINDOW = _call(
    "messages",
    window=st.builds(Window, st.sampled_from([0, 1, 2, 3, 5]), overflow=st.sampled_from(["error", "keep", "empty"])),
)
RESTORE = _call(
    "restore",
    snapshot=st.builds(
        lambda *parts: parts,
        st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=2),
        st.dictionaries(st.sampled_from(["m", "n"]), st.sampled_from([1, "x"]), max_size=2),
        TITLE,
        SERVICE,
    ),
)
WRITES = st.one_of(
    *(APPEND, APPEND, APPEND, CONDITIONAL_APPEND, BATCH, POP, TRUNCATE, REPLACE_PREFIX, CLEAR, REPLACE, REDACT),
    *(SET, SET_SEVERAL, REMOVE, UPDATE, DELETE),
)

OF_A_STATE = ("set", "set_several", "remove", "entry", "items", "keys")
OF_A_LOG = (
    *("append", "pop", "truncate_after", "replace_prefix", "clear", "replace", "redact"),
    *("messages", "stream", "count", "verify"),
)
NAMES = {"set_several": "update", "remove": "delete"}
"""What a state calls otherwise than the model does."""


class Machine(RuleBasedStateMachine):
    """Sequences of operations in a tenant of their own."""

    def __init__(self, examples: Examples, stores: Sequence[Store[ChatMessage]], observer: Store[ChatMessage]) -> None:
        super().__init__()
        self.examples, self.stores, self.observer = examples, stores, observer
        self.tenant = uuid.uuid4().hex
        self.views = [{user: self._view(store, user) for user in USERS} for store in (*stores, observer)]
        self.clocks: list[Any] = [store.backend for store in (*stores, observer) if hasattr(store.backend, "clock")]
        self.damaging = any("on_corrupt" in store.options.model_fields_set for store in stores)
        now = float(int(self.clocks[0].clock())) if self.clocks else 0.0
        self.worlds = [World(now, timed=bool(self.clocks))]
        self._set_clocks(now)
        self.leases: list[Lease[ChatMessage]] = []
        self.given_back: set[int] = set()
        self.guarded: list[Session[ChatMessage]] = []

    def _view(self, store: Store[ChatMessage], user: str) -> Any:
        view = store.scoped(tenant=self.tenant)
        return view.scoped(user=user) if user else view

    # The steps

    @rule(call=APPEND)
    def append(self, call: Call) -> None:
        self.do(call)

    @rule(call=CONDITIONAL_APPEND)
    def append_on_a_condition(self, call: Call) -> None:
        self.do(call)

    @rule(call=BATCH)
    def append_a_batch(self, call: Call) -> None:
        self.do(call)

    @rule(call=POP)
    def pop(self, call: Call) -> None:
        self.do(call)

    @rule(call=st.one_of(TRUNCATE, CLEAR))
    def cut(self, call: Call) -> None:
        self.do(call)

    @rule(call=REPLACE_PREFIX)
    def replace_prefix(self, call: Call) -> None:
        self.do(call)

    @rule(call=REPLACE_PREFIX, between=st.lists(WRITES, max_size=2))
    def compact_what_was_read(self, call: Call, between: list[Call]) -> None:
        """A compaction of all that the log held, and writes that come in between: an edit, or another compaction."""
        target = call.target
        self.do(Call("messages", target, {}))
        read = self.worlds[0].tail(self._at(target))
        for write in between:
            self.do(write._replace(target=target._replace(store=1 - target.store)))
        pairs = self.worlds[0].cursors.get((target.scope, target.session), [])
        places = [place for place, (ours, _) in enumerate(pairs) if ours == read]
        upto = Nth(len(pairs) - 1 - places[0]) if places else 0
        self.do(call._replace(arguments={**call.arguments, "upto": upto}))

    @rule(call=REPLACE)
    def replace(self, call: Call) -> None:
        self.do(call)

    @rule(call=REDACT)
    def redact(self, call: Call) -> None:
        self.do(call)

    @rule(call=FORK)
    def fork(self, call: Call) -> None:
        self.do(call, also=(call.arguments["new_id"],))

    @rule(call=st.one_of(SET, SET_SEVERAL, REMOVE))
    def write_state(self, call: Call) -> None:
        self.do(call)

    @rule(call=st.one_of(SET, SET_SEVERAL, REMOVE))
    def write_state_of_the_scope(self, call: Call) -> None:
        self.do(call._replace(target=call.target._replace(session="", lease=None)))

    @rule(call=st.one_of(_call("entry", key=st.sampled_from(KEYS)), _call("keys", prefix=PREFIX)))
    def read_state(self, call: Call) -> None:
        self.do(call)

    @rule(call=st.one_of(UPDATE, UPDATE_METADATA))
    def update(self, call: Call) -> None:
        self.do(call)

    @rule(call=DELETE)
    def delete(self, call: Call) -> None:
        self.do(call)

    @rule(call=st.one_of(MESSAGES, LAST, WINDOW, _call("stream", after=st.one_of(st.none(), PLACE))))
    def read(self, call: Call) -> None:
        self.do(call)

    @precondition(lambda self: self.clocks)
    @rule(call=st.one_of(LAST, _call("items", prefix=PREFIX), APPEND, APPEND, SET, SET), times=st.integers(2, 4))
    def come_back_now_and_then(self, call: Call, times: int) -> None:
        for _ in range(times):
            self.do(call)
            self.let_time_pass(60_000.0)

    @rule(call=st.one_of(*map(_call, ("count", "exists", "snapshot", "verify"))))
    def ask(self, call: Call) -> None:
        self.do(call)

    @rule(call=RESTORE)
    def restore(self, call: Call) -> None:
        parts = call.arguments["snapshot"]
        state, metadata, title, service = parts
        snapshot = SessionSnapshot(call.target.session, service, state, metadata, title)
        self.do(call._replace(arguments={"snapshot": snapshot}))

    @precondition(lambda self: self.damaging)
    @rule(call=_call("damage"))
    def damage(self, call: Call) -> None:
        self.do(call._replace(target=call.target._replace(lease=None)))

    @rule(calls=st.lists(WRITES, min_size=2, max_size=5), on=TARGETS)
    def write_at_one_time(self, calls: list[Call], on: Target) -> None:
        """Several writes on one session at once: as if they had come one after the other, in some order."""
        calls = [call._replace(target=on._replace(store=call.target.store, lease=call.target.lease)) for call in calls]
        resolved = [self._resolved(call, self.worlds[0]) for call in calls]

        async def together() -> list[Any]:
            return await asyncio.gather(*(settled(self._really(call)) for call, _, _ in resolved))

        outcomes = self.examples.call(together())
        worlds = {(frozenset[int](), world.fingerprint()): world for world in self.worlds}
        for _ in calls:
            further = {}
            for (done, _fingerprint), world in worlds.items():
                for place in set(range(len(calls))) - done:
                    known = resolved[place][1:]
                    trial, expected = imagined(world, calls[place].operation, known, outcomes[place])
                    if trial is None and ended_meanwhile(expected, outcomes[place]):
                        trial = world
                    if trial is not None:
                        further[done | {place}, trial.fingerprint()] = trial
            worlds = further
        told = "\n".join(f"  {call}\n    {shown(outcome)}" for call, outcome in zip(calls, outcomes, strict=True))
        self.worlds = list(worlds.values())
        if not worlds:
            raise AssertionError(f"there is no order in which these have these outcomes:\n{told}")
        try:
            self.look(on.scope, on.session)
        except AssertionError as error:
            raise AssertionError(f"there is no order in which these leave what they left:\n{told}\n{error}") from None

    @rule(on=TARGETS)
    def take_a_lease(self, on: Target) -> None:
        lease = self._session(on._replace(lease=None)).lease(ttl=LEASE)
        outcome = self.examples.call(settled(lease.__aenter__()))
        if not isinstance(outcome, Exception):
            self.leases.append(lease)
            self.guarded.append(outcome)
            outcome = None
        self.agree(f"{on} take_lease", "take_lease", lambda world: ((self._at(on), LEASE), {}), outcome)
        self.look(on.scope, on.session)

    @precondition(lambda self: self.leases)
    @rule(n=st.integers(0, 3), renew=st.booleans())
    def renew_or_give_back_a_lease(self, n: int, renew: bool) -> None:
        place = len(self.leases) - 1 - n % len(self.leases)
        if place in self.given_back:
            return
        lease, (at, _) = self.leases[place], self.worlds[0].leases[place]
        outcome = self.examples.call(settled(lease.renew() if renew else lease.__aexit__(None, None, None)))
        operation, arguments = ("renew_lease", (place, LEASE)) if renew else ("give_back", (place,))
        self.given_back |= set() if renew else {place}
        self.agree(f"{operation} of {at}", operation, lambda world: (arguments, {}), outcome)
        self.look(at.scope, at.session)

    @precondition(lambda self: self.leases)
    @rule(call=WRITES, n=st.integers(0, 3))
    def write_under_a_lease(self, call: Call, n: int) -> None:
        place = len(self.leases) - 1 - n % len(self.leases)
        at, _ = self.worlds[0].leases[place]
        same = [lease for lease, (other, _) in enumerate(self.worlds[0].leases) if other[1:3] == at[1:3]]
        newest = len(same) - 1 - same.index(place)
        self.do(call._replace(target=call.target._replace(scope=at.scope, session=at.session, lease=newest)))

    @precondition(lambda self: self.clocks)
    @rule(seconds=st.sampled_from([10_000.0, 35_000.0, 60_000.0, 60_000.0, 110_000.0]))
    def let_time_pass(self, seconds: float) -> None:
        now = self.worlds[0].now + seconds
        for world in self.worlds:
            world.now = now
        while any(world.limbo() for world in self.worlds):
            for world in self.worlds:
                world.now += 1_000.0
        self._set_clocks(self.worlds[0].now)

    @rule(user=st.sampled_from(USERS), dry_run=st.booleans(), store=st.integers(0, 1))
    def erase(self, user: str, dry_run: bool, store: int) -> None:
        self._remove("erase", store, user, {"dry_run": dry_run})

    @rule(
        user=st.sampled_from(USERS),
        older_than=st.sampled_from([None, 0.0, 25_500.0, 75_500.0]),
        dry_run=st.booleans(),
        store=st.integers(0, 1),
    )
    def purge(self, user: str, older_than: float | None, dry_run: bool, store: int) -> None:
        self._remove("purge", store, user, {"older_than": older_than, "dry_run": dry_run})

    def _remove(self, operation: str, store: int, user: str, arguments: dict[str, Any]) -> None:
        outcome = self.examples.call(settled(getattr(self.views[store][user], operation)(**arguments)))
        self.agree(f"{operation} {arguments}", operation, lambda world: ((user,), arguments), outcome)
        self.look_at_all()

    @rule(
        user=st.sampled_from(USERS),
        limit=st.integers(1, 4),
        below=st.booleans(),
        where=st.sampled_from([{}, {"title": "one"}, {"metadata": {"m": 1}}, {"metadata": {"n": {"a": [2], "b": 1}}}]),
        store=st.integers(0, 1),
    )
    def list_sessions(self, user: str, limit: int, below: bool, where: dict[str, Any], store: int) -> None:
        async def pages() -> list[SessionInfo]:
            page = await self.views[store][user].list_sessions(limit=limit, below=below, **where)
            found = list(page)
            while page.next is not None:
                assert len(page) == limit
                page = await self.views[store][user].list_sessions(limit=limit, below=below, after=page.next, **where)
                found += page
            return found

        found = self.examples.call(pages())
        places = [(-info.updated_at.timestamp(), info.id) for info in found]
        assert places == sorted(places), f"not in the order of the last write and the id: {places}"

        def expected(world: World) -> dict[tuple[str, str], Info]:
            return {
                key: info
                for key, info in world.listed(user, below=below).items()
                if where.get("title") in (None, info.title)
                if all(info.metadata.get(name) == value for name, value in where.get("metadata", {}).items())
            }

        listed = sorted(((info.scope.user or "", info.id), info) for info in found)
        self.compare("list_sessions", lambda world: sorted(expected(world).items()), listed)

    @rule(user=st.sampled_from(USERS), service=st.sampled_from(["resp_1", {"id": 1}]), store=st.integers(0, 1))
    def find_by_service_id(self, user: str, service: Any, store: int) -> None:
        found = self.examples.call(self.views[store][user].find_by_service_id(service))
        for world in self.worlds:
            listed = world.listed(user)
            times = {key[1]: info.updated for key, info in listed.items() if info.service == service}
            expected = {id for id, time in times.items() if time >= max(times.values()) - EXACT}
            assert found.id in expected if found else not expected, f"{service!r} is of {expected}, found was {found!r}"

    @rule(store=st.integers(0, 1))
    def sweep(self, store: int) -> None:
        self.examples.call(self.stores[store].sweep(1000))
        self.look_at_all()

    # How a step is taken

    def do(self, call: Call, also: tuple[str, ...] = ()) -> None:
        """The operation, on the store and in the model; then what everybody sees."""
        resolved = self._resolved(call, self.worlds[0])[0]
        outcome = self.examples.call(settled(self._really(resolved)))
        self.agree(str(call), call.operation, lambda world: self._resolved(call, world)[1:], outcome)
        for session in (call.target.session, *also):
            self.look(call.target.scope, session)

    def _resolved(self, call: Call, world: World) -> tuple[Call, tuple[Any, ...], dict[str, Any]]:
        """The call with the backend's cursors and versions in it, and the model's arguments."""
        target = call.target
        if call.operation not in (*OF_A_LOG, "damage"):
            target = target._replace(log="")
        places = [place for place, (at, _) in enumerate(world.leases) if at[1:3] == target[1:3]]
        lease = places[-1 - target.lease % len(places)] if places and target.lease is not None else None
        if call.operation in ("fork", "messages", "stream"):
            lease = None
        real, ours = dict(call.arguments), dict(call.arguments)
        for name, value in call.arguments.items():
            if isinstance(value, Nth):
                known = world.versions if name == "expected" else world.cursors.get((target.scope, target.session), [])
                none: Any = ("", "") if name == "expected" else (Cursor(ABSENT, 0), Cursor(ABSENT, 0))
                ours[name], real[name] = known[-1 - value.n % len(known)] if known else none
            if isinstance(value, Held):
                ours[name] = real[name] = world.seq_of(target.scope, target.session, target.log, value.n)
        at = self._at(target)
        if lease is not None:
            at = world.leases[lease][0]._replace(log=target.log)
        return Call(call.operation, target._replace(lease=lease), real), (at,), ours

    def _at(self, target: Target) -> At:
        return At(self.stores[target.store].options, target.scope, target.session, target.log)

    def _session(self, target: Target) -> Session[ChatMessage]:
        if target.lease is not None:
            return self.guarded[target.lease]
        session: Session[ChatMessage] = self.views[target.store][target.scope].session(target.session)
        return session

    async def _really(self, call: Call) -> Any:
        operation, target, arguments = call
        if operation == "damage":
            return await self._damage(target)
        if operation in OF_A_STATE:
            state = self._session(target).state if target.session else self.views[target.store][target.scope].state
            return await getattr(state, NAMES.get(operation, operation))(**arguments)
        session = self._session(target)
        session = self._session(target)
        handle = session.log(target.log) if target.log and operation in OF_A_LOG else session
        if operation == "stream":
            return [message async for message in handle.stream(**arguments)]
        result = await getattr(handle, operation)(**arguments)
        if operation == "verify":
            return [(finding.seq, finding.kind) for finding in result]
        return result.id if operation == "fork" else result

    async def _damage(self, target: Target) -> None:
        record = Record(0, None, "assistant", False, "chat/1", None, None, b'{"role":"assist')
        key = Key(Scope(tenant=self.tenant, user=target.scope or None), target.session)
        await commit_raw(self.stores[target.store], key, Write(os.urandom(16), target.log, [record]))

    def agree(
        self,
        what: str,
        operation: str,
        arguments: Callable[[World], tuple[tuple[Any, ...], dict[str, Any]]],
        outcome: Any,
    ) -> None:
        """The worlds in which the operation has this outcome; an AssertionError if there is none."""
        worlds, expectations = list[World](), list[Any]()
        for world in self.worlds:
            trial, expected = imagined(world, operation, arguments(world), outcome)
            expectations.append(expected)
            if trial is not None:
                worlds.append(trial)
        self.worlds = worlds[:LIMIT]
        if not worlds:
            raise AssertionError(f"{what}:\n  expected {expectations[0]!r}\n  found    {shown(outcome)}")

    def compare(self, what: str, expected: Callable[[World], Any], found: Any) -> None:
        """The worlds of which this is true; an AssertionError if there is none."""
        expectations = [expected(world) for world in self.worlds]
        worlds = [
            world
            for world, expectation in zip(self.worlds, expectations, strict=True)
            if matches(world, expectation, found)
        ]
        self.worlds = worlds
        if not worlds:
            raise AssertionError(f"{what}:\n  expected {expectations[0]!r}\n  found    {shown(found)}")

    def look(self, scope: str, session: str) -> None:
        """All that can be seen of a session, or of a scope's state, by a store that renews nothing."""
        view = self.views[-1][scope]
        at = At(self.observer.options, scope, session)

        async def see() -> list[Any]:
            if not session:
                return [await view.state.items()]
            handle = view.session(session)
            return [
                await handle.state.items(),
                await handle.info(),
                await handle.messages(),
                await handle.log("side").messages(),
            ]

        def expected(world: World) -> list[Any]:
            if not session:
                return [world.items(at)]
            side = at._replace(log="side")
            return [world.items(at), world.info(at), world.messages(at), world.messages(side)]

        self.compare(f"what is in {scope!r}, {session!r}", expected, self.examples.call(see()))

    def look_at_all(self) -> None:
        for user in set(USERS):
            for session in ("", *sorted({*SESSIONS, "u"})):
                self.look(user, session)

    def _set_clocks(self, now: float) -> None:
        for backend in self.clocks:
            backend.clock = lambda: now

    def teardown(self) -> None:
        if not self.worlds:  # a step has failed, and says so itself
            return
        self.look_at_all()
        for user in set(USERS):
            listed = self.examples.call(self.views[0][user].list_sessions())
            self.compare(
                "all sessions in the end",
                lambda world, user=user: sorted(key[1] for key in world.listed(user)),  # type: ignore[misc]
                sorted(info.id for info in listed),
            )
        self.examples.call(self.views[0][""].erase())


async def settled(call: Coroutine[Any, Any, Any]) -> Any:
    """What the call returns, or the error that it raises."""
    try:
        return await call
    except (ChatkeepError, ValueError) as error:
        return error


def imagined(
    world: World, operation: str, arguments: tuple[tuple[Any, ...], dict[str, Any]], outcome: Any
) -> tuple[World | None, Any]:
    """The world after the operation, or None if it would have ended otherwise; and how it would have ended."""
    trial, (positional, named) = world.copy(), arguments
    try:
        expected = getattr(trial, operation)(*positional, **named)
    except RefusedError as refusal:
        expected, trial = refusal, world.copy()
    return (trial if matches(trial, expected, outcome) else None), expected


def ended_meanwhile(expected: Any, outcome: Any) -> bool:
    """Whether an edit found its message and then its session ended: a conflict, and in no order is it there."""
    not_found = isinstance(expected, RefusedError) and expected.kind is MessageNotFoundError
    return not_found and type(outcome) is ConflictError


def matches(world: World, expected: Any, found: Any) -> bool:
    """Whether what the model expects was found; the world learns what the backend calls things."""
    if isinstance(expected, RefusedError):
        return (
            type(found) is expected.kind
            and (
                matches(world, expected.tail, getattr(found, "tail", None))
                or (expected.ended and getattr(found, "tail", None) is None)
            )
            and matches(world, expected.version, getattr(found, "version", None))
            and expected.seq == getattr(found, "seq", None)
        )
    if isinstance(expected, Cursor):
        if not isinstance(found, Cursor) or expected.seq != found.seq or not world.learn(expected.life, found.life):
            return False
        world.keep_cursor(expected, found)
        return True
    if isinstance(expected, Receipt):
        exact = not world.expired  # what has expired and was not swept may be counted
        return isinstance(found, Receipt) and (found == expected if exact else all(map(le, expected, found)))
    if isinstance(expected, Page):
        parts = isinstance(found, History) and (list(found), *(getattr(found, name) for name in Page._fields[1:]))
        return bool(parts) and all(
            one is None or matches(world, one, other) for one, other in zip(expected, parts or (), strict=True)
        )
    if isinstance(expected, Info):
        return isinstance(found, SessionInfo) and _same_session(world, expected, found)
    if isinstance(expected, list | tuple):
        pairs = zip(expected, found, strict=False) if isinstance(found, list | tuple) else ()
        return (
            isinstance(found, list | tuple)
            and len(expected) == len(found)
            and all(matches(world, one, other) for one, other in pairs)
        )
    if isinstance(found, ChatMessage | SessionSnapshot):
        found = found.to_dict()
    if isinstance(expected, SessionSnapshot):
        expected = expected.to_dict()
    if isinstance(expected, str) and isinstance(found, str):
        return world.learn(expected, found)
    return identical(expected, found) or (expected is None and isinstance(found, Record))


def _same_session(world: World, expected: Info, found: SessionInfo) -> bool:
    updated, first = found.updated_at.timestamp(), None if found.expires_at is None else found.expires_at.timestamp()
    on_time = not world.timed or (
        abs(found.created_at.timestamp() - expected.created) < 1
        and expected.updated - EXACT < updated < expected.updated + 1
        and (first is None) == (expected.expires is None)
        and (expected.expires is None or first is None or expected.expires[0] - 1 < first < expected.expires[1] + 1)
    )
    same = (expected.title, expected.metadata, expected.service)
    return (
        on_time
        and world.learn(expected.life, found.life)
        and identical(same, (found.title, found.metadata, found.service_session_id))
        and expected.logs.keys() == found.logs.keys()
        and all(matches(world, expected.logs[name], found.logs[name]) for name in found.logs)
    )


def shown(outcome: Any) -> str:
    """What was found, with all that belongs to it."""
    if isinstance(outcome, History):
        return f"{list(outcome)!r} {[(name, getattr(outcome, name)) for name in outcome.__slots__]}"
    if isinstance(outcome, Exception):
        return f"{outcome!r} {vars(outcome)}"
    return repr(outcome)


class Sequences(Harness):
    @clause(2, 5, 6, 7, 9, 10, 11, 12, 13, 18, 20, 21, 22, 23, 24, 27, 28)
    @pytest.mark.parametrize("kept", OPTIONS)
    async def test_random_sequences_agree_with_a_plain_model(self, opened: Opener, kept: str) -> None:
        stores = [opened(**each) for each in OPTIONS[kept]]
        observer = opened(on_corrupt="raw")
        for store in (*stores, observer):
            await store.open()
        examples = Examples(kept, EXAMPLES, steps=STEPS)
        await examples.run(lambda: Machine(examples, stores, observer))

    # What such sequences have found, as tests of their own

    @clause(6)
    async def test_a_conflict_where_there_is_no_session_carries_a_tail_to_go_on_with(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        with pytest.raises(ConflictError) as caught:
            await session.append([ChatMessage.user("one")], expected_tail=5)
        assert caught.value.tail == Cursor(ABSENT, 0)
        await session.append([ChatMessage.user("one")], expected_tail=caught.value.tail)
        assert texts(await session.messages()) == ["one"]

    @clause(2, 6)
    async def test_a_cursor_of_another_life_is_refused_with_the_current_tail(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        places = [(await session.messages()).start]  # of no life yet
        await session.append([ChatMessage.user("gone")])
        places.append((await session.messages()).start)
        await session.delete()
        await session.append([ChatMessage.user("one"), ChatMessage.assistant("two")])
        tail = (await session.messages()).tail
        for place in places:
            for refused in (
                session.append([ChatMessage.user("three")], expected_tail=place),
                session.append([], expected_tail=place),
                session.pop(expected_tail=place),
                session.truncate_after(place),
                session.replace_prefix(place),
                session.replace(place, ChatMessage.user("three")),
                session.redact(place),
            ):
                with pytest.raises(ConflictError) as caught:
                    await refused
                assert caught.value.tail == tail
        assert texts(await session.messages()) == ["one", "two"]

    @clause(7)
    async def test_a_pop_on_an_expected_tail_is_not_refused_for_an_edit_meanwhile(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user("edited")])
        for number in range(20):
            appended = await session.append([ChatMessage.user(f"message {number}")])
            edit = session.redact(1, f"redacted {number}")
            _, popped = await asyncio.gather(edit, session.pop(expected_tail=appended.tail))
            assert texts(popped) == [f"message {number}"]

    @clause(5, 27)
    async def test_a_message_that_was_replaced_without_an_id_is_known_again_as_it_is_read(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user("one", id="m")])
        await session.replace(1, ChatMessage.user("two"))
        history = await session.messages()
        assert [(message.text, message.id) for message in history] == [("two", "m")]
        assert (await session.append(history, on_conflict="error")).added == 0

    @clause(27)
    async def test_an_edit_without_an_id_keeps_the_id_of_the_message_that_it_replaces(
        self, store: Store[ChatMessage]
    ) -> None:
        for number in range(20):
            session = store.session(f"s{number}")
            await session.append([ChatMessage.user("one", id="old")])
            edits = [ChatMessage.user("two", id="new"), ChatMessage.user("three")]
            await asyncio.gather(*(session.replace(1, edit) for edit in edits))
            (message,) = await session.messages()
            assert (message.text, message.id) in {("two", "new"), ("three", "new")}
