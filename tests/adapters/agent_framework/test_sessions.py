"""`ChatkeepSessionStore` with the real framework: what is kept, what comes back, and who may overwrite whom."""

from __future__ import annotations

import asyncio
import copy
import sys
import warnings
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import agent_framework
import pytest
from agent_framework import Agent, AgentSession, BaseChatClient, ChatResponse, Message
from pydantic import BaseModel

from chatkeep import (
    ChatMessage,
    ConflictError,
    CorruptRecordError,
    InvalidIdError,
    MessageTooLargeError,
    ScopedStore,
    SerializationError,
    SessionSerializer,
    StoreClosedError,
    open_store,
)
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

SESSIONS = hasattr(agent_framework, "SessionStore")
if SESSIONS:
    from agent_framework import register_state_type

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # The framework's: session stores are experimental.
        from chatkeep_adapters.agent_framework.sessions import (
            FORMAT,
            STATE_KEY,
            ChatkeepSessionStore,
            FingerprintError,
        )
    from chatkeep_adapters.agent_framework.session_state import StateWriter, read

since_1_13 = pytest.mark.skipif(not SESSIONS, reason="this framework has no SessionStore: it came with 1.13")


@pytest.mark.skipif(SESSIONS, reason="this framework has a SessionStore")
def test_a_framework_without_session_stores_is_told_from_a_missing_one() -> None:
    with pytest.raises(ImportError, match=r"came with agent-framework-core 1\.13: pip install"):
        import chatkeep_adapters.agent_framework.sessions  # noqa: F401


class Repeating(BaseChatClient[Any]):
    """Answers with how many messages it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[list[str]] = []

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, **_: Any
    ) -> Awaitable[ChatResponse[Any]]:
        assert not stream
        return self._answer(messages)

    async def _answer(self, messages: Sequence[Message]) -> ChatResponse[Any]:
        self.shown.append([message.text for message in messages])
        return ChatResponse(messages=[Message("assistant", [f"seen {len(messages)}"])])


class Trip:
    """A state type with the framework's protocol."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __eq__(self, other: object) -> bool:
        return type(other) is Trip and other.place == self.place

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trip:
        return cls(data["place"])


class Places(list[Trip]):
    """A list of a class of its own."""


class Booking(BaseModel):
    seats: int
    at: datetime


@dataclass
class Basket:
    items: list[str]


class Stranger:
    """An object that nobody has registered, with a dict form."""

    def to_dict(self) -> dict[str, Any]:
        return {"type": "stranger"}


class UnknownModel(BaseModel):
    seats: int


class Lenient(BaseModel):
    """Registered with the store, and not with the framework."""

    tags: list[str]


if SESSIONS:
    register_state_type(Trip, type_id="chatkeep-tests.trip")
    register_state_type(Booking, type_id="chatkeep-tests.booking")
    register_state_type(
        Basket,
        type_id="chatkeep-tests.basket",
        encoder=lambda basket: {"items": basket.items},
        decoder=lambda data: Basket(list(data["items"])),
    )

LOOKS_LIKE_A_MESSAGE = {"type": "message", "role": "user", "contents": [{"type": "text", "text": "not me"}]}


@pytest.fixture
async def scope(url: str) -> AsyncIterator[ScopedStore[Any]]:
    async with open_store(url, ttl="1h") as store:
        yield store.scoped(tenant="acme", user="alice")


def session_with(state: dict[str, Any], *, session_id: str = "s", **fields: Any) -> AgentSession:
    session = AgentSession(session_id=session_id, **fields)
    session.state.update(state)
    return session


async def there_and_back(scope: ScopedStore[Any], state: dict[str, Any]) -> dict[str, Any]:
    await ChatkeepSessionStore(scope).set("s", session_with(state))
    session = await ChatkeepSessionStore(scope).get("s")
    assert session is not None
    return session.state


@since_1_13
async def test_an_agent_goes_on_where_the_stored_session_ended(scope: ScopedStore[Any]) -> None:
    client = Repeating()
    agent = Agent(client=client)  # With no provider of ours the framework keeps the history in the session's state.
    session = agent.create_session(session_id="s")
    await agent.run("Where is my bag?", session=session)
    await ChatkeepSessionStore(scope).set("s", session)
    resumed = await ChatkeepSessionStore(scope).get("s")
    assert resumed is not None
    await agent.run("And now?", session=resumed)
    assert client.shown[1] == ["Where is my bag?", "seen 1", "And now?"]


@since_1_13
async def test_a_session_from_a_url_is_there_when_the_store_is_opened_again(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with ChatkeepSessionStore(url) as sessions:
        await sessions.set("s", session_with({"step": 1}))
    with pytest.raises(StoreClosedError):
        await sessions.get("s")
    async with ChatkeepSessionStore(url) as sessions:
        session = await sessions.get("s")
    assert session is not None
    assert session.state == {"step": 1}


@since_1_13
async def test_a_store_that_is_passed_in_is_not_closed(scope: ScopedStore[Any]) -> None:
    async with ChatkeepSessionStore(scope):
        pass
    assert await scope.session("s").exists() is False


@since_1_13
async def test_a_session_that_was_never_stored_is_none_and_leaves_nothing(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope)
    assert await sessions.get("s") is None
    await sessions.delete("s")
    assert await scope.list_sessions() == []


@since_1_13
async def test_each_get_gives_a_session_of_its_own(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope)
    session = session_with({"todo": ["a"]})
    await sessions.set("s", session)
    session.state["todo"].append("b")
    first = await sessions.get("s")
    assert first is not None
    first.state["todo"].append("c")
    second = await sessions.get("s")
    assert second is not None
    assert second.state == {"todo": ["a"]}


@since_1_13
async def test_set_replaces_the_whole_session(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope)
    await sessions.set("s", session_with({"a": 1, "b": 2}, service_session_id="conv_1"))
    await sessions.set("s", session_with({"b": 3}))
    session = await sessions.get("s")
    assert session is not None
    assert (session.state, session.service_session_id) == ({"b": 3}, None)
    assert await sessions.find_by_service_id("conv_1") is None


@since_1_13
async def test_a_session_keeps_its_own_id_under_another_key(scope: ScopedStore[Any]) -> None:
    await ChatkeepSessionStore(scope).set("after resp_7", session_with({}, session_id="s"))
    session = await ChatkeepSessionStore(scope).get("after resp_7")
    assert session is not None
    assert session.session_id == "s"


@since_1_13
async def test_the_time_of_a_session_is_the_stores(scope: ScopedStore[Any]) -> None:
    await ChatkeepSessionStore(scope).set("s", session_with({}))
    info = await scope.session("s").info()
    assert info is not None
    assert info.expires_at is not None
    assert timedelta(minutes=59) < info.expires_at - info.updated_at < timedelta(minutes=64)


@since_1_13
async def test_registered_state_types_come_back_as_what_they_were(scope: ScopedStore[Any]) -> None:
    state: dict[str, Any] = {
        "trip": Trip("Oslo"),
        "booking": Booking(seats=2, at=datetime(2026, 1, 2, tzinfo=UTC)),
        "basket": {"held": [Basket(["bag"])], "pair": (Basket([]), Trip("Bergen"))},
        "ordered": OrderedDict(trip=Trip("Voss")),
        "list": Places([Trip("Voss")]),
    }
    assert await there_and_back(scope, state) == state
    messages = await there_and_back(scope, {"seen": [Message("user", ["Hello"], message_id="m1")]})
    assert [type(message) for message in messages["seen"]] == [Message]
    assert (messages["seen"][0].text, messages["seen"][0].message_id) == ("Hello", "m1")


@since_1_13
@pytest.mark.parametrize(
    "data",
    [
        LOOKS_LIKE_A_MESSAGE,
        OrderedDict(LOOKS_LIKE_A_MESSAGE),
        OrderedDict({"type": "chatkeep-tests.trip"}),
        {"type": "message", "role": 7},
        {"type": "chatkeep-tests.trip", "place": "Oslo"},
        {"$agent_framework": "state", "v": LOOKS_LIKE_A_MESSAGE},
        {"$agent_framework": 1},
        {"$chatkeep": "bytes", "v": "AA=="},
    ],
)
async def test_data_that_looks_like_an_object_comes_back_as_the_data(
    scope: ScopedStore[Any], data: Mapping[str, Any]
) -> None:
    state = await there_and_back(scope, {"user": {"inside": [data]}, "top": data})
    assert state == {"user": {"inside": [data]}, "top": data}
    assert type(state["top"]) is dict


@since_1_13
async def test_data_inside_a_registered_object_may_have_the_envelopes_key(scope: ScopedStore[Any]) -> None:
    message = Message("user", ["Hello"], additional_properties={"$agent_framework": "state", "v": {}})
    state = await there_and_back(scope, {"message": message})
    assert state["message"].additional_properties == {"$agent_framework": "state", "v": {}}


@since_1_13
async def test_what_the_store_knows_needs_no_registration_with_the_framework(url: str) -> None:
    state = {
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "price": Decimal("1.10"),
        "data": b"\0\xff",
        "pair": (1, "b"),
        "tags": {"x"},
        "large": 2**70,
        "lenient": Lenient(tags=["a"]),
    }
    async with open_store(url, types=[Lenient]) as store:
        assert await there_and_back(store, state) == state


class Recurring(dict[str, Any]):
    """A dict that contains itself."""

    def __init__(self) -> None:
        super().__init__()
        self["self"] = self


@since_1_13
@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "$.state.provider.items[1]"),
        (Stranger(), "$.state.provider.items[1]"),
        (UnknownModel(seats=1), "$.state.provider.items[1]"),
        (float("nan"), "$.state.provider.items[1]"),
        ({1: "a"}, "$.state.provider.items[1]"),
        (Recurring(), "$.state"),
    ],
    ids=["object", "to_dict", "pydantic", "nan", "key", "recursion"],
)
async def test_what_would_not_come_back_is_refused_by_its_place_and_nothing_is_written(
    scope: ScopedStore[Any], value: Any, place: str
) -> None:
    sessions = ChatkeepSessionStore(scope)
    with pytest.raises(SerializationError) as refused:
        await sessions.set("s", session_with({"provider": {"items": ["ok", value]}}, service_session_id="conv_1"))
    assert refused.value.path == place
    assert str(refused.value).startswith(f"{place}: ")
    assert await scope.list_sessions() == []


@since_1_13
async def test_a_service_session_id_that_cannot_be_found_by_is_refused(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope)
    with pytest.raises(InvalidIdError, match="service_session_id is 2000 bytes long"):
        await sessions.set("s", session_with({}, service_session_id="x" * 2000))
    with pytest.raises(MessageTooLargeError, match="service session id take"):
        await sessions.set("s", session_with({}, service_session_id={"context_id": "x" * 20_000}))
    assert await scope.list_sessions() == []


@since_1_13
async def test_a_class_that_extends_the_session_is_refused(scope: ScopedStore[Any]) -> None:
    class Special(AgentSession):
        pass

    with pytest.raises(TypeError, match="would not come back; keep what it adds in session"):
        await ChatkeepSessionStore(scope).set("s", Special(session_id="s"))


@since_1_13
@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"format": "chatkeep.agent_session/2"}, "of a newer chatkeep"),
        ({"format": "something"}, "its form is 'something'"),
        (["a"], "its form is None"),
        ({"format": "FORMAT", "session_id": "s"}, "service_session_id"),
        (
            {
                "format": "FORMAT",
                "session_id": "s",
                "service_session_id": None,
                "state": {"a": {"$agent_framework": "state", "v": {"type": "gone"}}},
            },
            r"\$\.state\.a is of the type 'gone', which is not registered",
        ),
        (
            {
                "format": "FORMAT",
                "session_id": "s",
                "service_session_id": None,
                "state": {"a": {"$agent_framework": "other", "v": {}}},
            },
            r"\$\.state\.a: an object with the key",
        ),
        (
            {
                "format": "FORMAT",
                "session_id": "s",
                "service_session_id": None,
                "state": {"$agent_framework": "dict", "v": {}, "more": 1},
            },
            r"\$\.state: an object with the key",
        ),
    ],
)
async def test_a_stored_session_that_cannot_be_read_says_why(scope: ScopedStore[Any], stored: Any, words: str) -> None:
    if isinstance(stored, dict) and stored["format"] == "FORMAT":
        stored = {**stored, "format": FORMAT}
    await scope.session("s").state.set(STATE_KEY, stored)
    with pytest.raises(CorruptRecordError, match=rf"AgentSession of session 's'.*{words}"):
        await ChatkeepSessionStore(scope).get("s")


@since_1_13
def test_a_state_that_this_threads_stack_is_too_short_for_is_refused_in_words() -> None:
    state: dict[str, Any] = {}
    for _ in range(sys.getrecursionlimit()):
        state = {"in": state}
    with pytest.raises(SerializationError, match="nested more deeply than this thread's stack allows"):
        StateWriter(SessionSerializer()).write(state)
    with pytest.raises(CorruptRecordError, match="nested more deeply than this thread's stack allows"):
        read(state)


@since_1_13
async def test_of_two_that_were_read_at_once_the_second_set_is_a_conflict(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope, check_conflicts=True)
    await sessions.set("s", session_with({"n": 0}))
    first, second = await sessions.get("s"), await sessions.get("s")
    assert first is not None
    assert second is not None
    first.state["n"] = 1
    await sessions.set("s", first)
    second.state["n"] = 2
    with pytest.raises(ConflictError, match="session 's' was stored or deleted by somebody else since") as conflict:
        await sessions.set("s", second)
    entry = await scope.session("s").state.entry(STATE_KEY)
    assert entry is not None
    assert (entry.value["state"], conflict.value.version) == ({"n": 1}, entry.version)
    first.state["n"] = 3
    await sessions.set("s", first)  # The one that was stored last goes on without being read again.


@since_1_13
async def test_no_update_is_lost_among_writers_who_read_again_after_a_conflict(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope, check_conflicts=True)
    await sessions.set("s", session_with({"n": 0}))

    async def add_one() -> int:
        conflicts = 0
        while True:
            session = await sessions.get("s")
            assert session is not None
            session.state["n"] += 1
            await asyncio.sleep(0)
            try:
                await sessions.set("s", session)
            except ConflictError:
                conflicts += 1
            else:
                return conflicts

    conflicts = await asyncio.gather(*(add_one() for _ in range(6)))
    session = await sessions.get("s")
    assert session is not None
    assert session.state == {"n": 6}
    assert sum(conflicts) > 0


@since_1_13
async def test_a_conflict_is_found_in_copies_in_new_sessions_and_after_a_deletion(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope, check_conflicts=True)
    session = session_with({"n": 0})
    await sessions.set("s", session)
    copied = copy.deepcopy(session)
    await sessions.set("s", copied)
    with pytest.raises(ConflictError):
        await sessions.set("s", session)
    with pytest.raises(ConflictError):
        await sessions.set("s", session_with({"n": 9}))
    await sessions.delete("s")
    with pytest.raises(ConflictError):
        await sessions.set("s", copied)
    await sessions.set("s", session_with({"n": 10}))


@since_1_13
async def test_without_the_check_the_last_writer_wins(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope)
    await sessions.set("s", session_with({"n": 0}))
    first, second = await sessions.get("s"), await sessions.get("s")
    assert first is not None
    assert second is not None
    first.state["n"], second.state["n"] = 1, 2
    await sessions.set("s", first)
    await sessions.set("s", second)
    last = await sessions.get("s")
    assert last is not None
    assert last.state == {"n": 2}


@since_1_13
async def test_a_session_of_another_agents_is_reported_and_can_be_taken_over(scope: ScopedStore[Any]) -> None:
    old, new = ChatkeepSessionStore(scope, fingerprint="agent/1"), ChatkeepSessionStore(scope, fingerprint="agent/2")
    await old.set("s", session_with({"n": 1}))
    with pytest.raises(FingerprintError, match="begin a new session, or") as mismatch:
        await new.get("s")
    assert (mismatch.value.stored, mismatch.value.expected) == ("agent/1", "agent/2")
    taken = await ChatkeepSessionStore(scope).get("s")
    assert taken is not None
    await new.set("s", taken)
    assert await new.get("s") is not None
    with pytest.raises(FingerprintError):
        await old.get("s")


@since_1_13
async def test_a_session_without_a_fingerprint_is_anybodys(scope: ScopedStore[Any]) -> None:
    await ChatkeepSessionStore(scope).set("s", session_with({}))
    assert await ChatkeepSessionStore(scope, fingerprint="agent/1").get("s") is not None


@since_1_13
async def test_delete_takes_the_session_and_leaves_its_messages(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope)
    await sessions.set("s", session_with({"n": 1}, service_session_id="conv_1"))
    await scope.session("s").append([ChatMessage.user("Hello")])
    await sessions.delete("s")
    assert await sessions.get("s") is None
    assert await scope.find_by_service_id("conv_1") is None
    assert await scope.session("s").count() == 1


@since_1_13
async def test_deleting_the_chatkeep_session_takes_session_and_messages(scope: ScopedStore[Any]) -> None:
    sessions = ChatkeepSessionStore(scope)
    await scope.session("s").append([ChatMessage.user("Hello")])
    await sessions.set("s", session_with({"n": 1}))
    await scope.session("s").delete()
    assert await sessions.get("s") is None
    assert await scope.session("s").count() == 0


@since_1_13
async def test_a_session_and_its_history_are_one_chatkeep_session(scope: ScopedStore[Any]) -> None:
    client, sessions = Repeating(), ChatkeepSessionStore(scope)
    for question in ("Where is my bag?", "And now?"):
        agent = Agent(client=client, context_providers=[ChatkeepHistoryProvider(scope)])
        session = await sessions.get("s") or agent.create_session(session_id="s")
        session.state["asked"] = question
        await agent.run(question, session=session)
        await sessions.set("s", session)
    assert client.shown[1] == ["Where is my bag?", "seen 1", "And now?"]
    assert [info.id for info in await scope.list_sessions()] == ["s"]
    entry = await scope.session("s").state.entry(STATE_KEY)
    assert entry is not None
    assert "bag" not in str(entry.value)  # What was said is in the messages alone.
    await scope.session("s").delete()
    assert await sessions.get("s") is None
    assert await ChatkeepHistoryProvider(scope).get_messages("s") == []


@since_1_13
@pytest.mark.parametrize("session_id", ["", "x" * 1025, "\ud800", 7, None])
async def test_what_cannot_be_an_id_is_refused(scope: ScopedStore[Any], session_id: Any) -> None:
    sessions = ChatkeepSessionStore(scope)
    with pytest.raises(ValueError, match="a session id"):
        ChatkeepSessionStore.validate_session_id(session_id)
    for call in (sessions.get(session_id), sessions.set(session_id, session_with({})), sessions.delete(session_id)):
        with pytest.raises(InvalidIdError, match="a session id"):
            await call
    ChatkeepSessionStore.validate_session_id("x" * 1024)


@since_1_13
async def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(TypeError, match="ChatkeepSessionStore takes a store, a scope of one or a URL, not int"):
        ChatkeepSessionStore(7)  # type: ignore[arg-type]


@since_1_13
async def test_a_session_store_can_be_narrowed_as_a_history_can(url: str) -> None:
    async with open_store(url) as store:
        await ChatkeepSessionStore(store, app="support", tenant="acme", user="alice").set("s", session_with({"n": 1}))
        scope = store.scoped(app="support", tenant="acme", user="alice")
        assert await ChatkeepSessionStore(scope).get("s") is not None
        for narrower in ({}, {"user": "bob"}, {"tenant": "acme", "user": "alice"}):
            assert await ChatkeepSessionStore(store, **narrower).get("s") is None
        with pytest.raises(InvalidIdError, match="user must be a str, not NoneType"):
            ChatkeepSessionStore(store, user=None)  # type: ignore[arg-type]


@since_1_13
async def test_a_dict_is_no_session(scope: ScopedStore[Any]) -> None:
    with pytest.raises(TypeError, match=r"takes an AgentSession, not dict: .*AgentSession\.from_dict.*with resume"):
        await ChatkeepSessionStore(scope).set("s", session_with({}).to_dict())  # type: ignore[arg-type]
    assert await ChatkeepSessionStore(scope).get("s") is None


@since_1_13
@pytest.mark.parametrize("check_conflicts", [False, True])
async def test_the_hosting_helper_keeps_its_sessions_here(scope: ScopedStore[Any], check_conflicts: bool) -> None:
    hosting = pytest.importorskip("agent_framework_hosting", reason="agent-framework-hosting is not installed")
    client = Repeating()
    for question in ("Where is my bag?", "And now?"):  # Two processes, as it were: each has a helper of its own.
        sessions = ChatkeepSessionStore(scope, check_conflicts=check_conflicts)
        state = hosting.AgentState(Agent(client=client), session_store=sessions)
        session = await state.get_or_create_session("s")
        await (await state.get_target()).run(question, session=session)
        await state.set_session("s", session)
    assert client.shown[1] == ["Where is my bag?", "seen 1", "And now?"]
