"""`ChatkeepChatMessageStore` with the framework's betas: ``agent-framework-core==1.0.0b251120`` and its neighbours."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import agent_framework
import pytest

import chatkeep_adapters.agent_framework
from chatkeep import ChatMessage as PortableMessage
from chatkeep import ConfigError, CorruptRecordError, SerializationError, StoreClosedError, open_store
from chatkeep.records import Record

if not hasattr(agent_framework, "ChatMessage"):
    pytest.skip("this framework is no beta: message stores went with 1.0", allow_module_level=True)

from agent_framework import (  # type: ignore[attr-defined]
    AgentThread,
    BaseChatClient,
    ChatAgent,
    ChatMessage,
    ChatResponse,
    ChatResponseUpdate,
    FunctionCallContent,
    FunctionResultContent,
    TextContent,
    ai_function,
    use_function_invocation,
)

from chatkeep_adapters.agent_framework import ChatkeepChatMessageStore
from chatkeep_adapters.agent_framework.beta_codec import BetaMessageCodec


@use_function_invocation
class Scripted(BaseChatClient):  # type: ignore[misc]
    """Asks for the tool where it is asked for weather, fails where it is told to, else counts what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[list[str]] = []

    async def _inner_get_response(self, *, messages: Any, **_: Any) -> Any:
        self.shown.append([str(message.role) for message in messages])
        if messages[-1].text == "fail":
            raise RuntimeError("the model is not there")
        if messages[-1].text == "weather":
            call = FunctionCallContent(call_id=f"call-{len(self.shown)}", name="weather", arguments={"place": "Oslo"})
            return ChatResponse(messages=[ChatMessage(role="assistant", contents=[call])])
        return ChatResponse(messages=[ChatMessage(role="assistant", text=f"seen {len(messages)}")])

    async def _inner_get_streaming_response(self, *, messages: Any, **_: Any) -> AsyncIterator[Any]:
        self.shown.append([str(message.role) for message in messages])
        for text in ("se", f"en {len(messages)}"):
            yield ChatResponseUpdate(role="assistant", contents=[TextContent(text)])


@ai_function
def weather(place: str) -> str:
    """The weather at a place."""
    return f"rain in {place}"


def said(*texts: str) -> list[Any]:
    return [ChatMessage(role="user", text=text) for text in texts]


async def texts(store: ChatkeepChatMessageStore) -> list[str]:
    return [message.text for message in await store.list_messages()]


def agent_on(url: str, client: Scripted, **keywords: Any) -> Any:
    return ChatAgent(
        chat_client=client,
        tools=[weather],
        chat_message_store_factory=lambda: ChatkeepChatMessageStore(url, **keywords),
    )


async def test_a_thread_is_resumed_from_what_the_framework_serialises_of_it(url: str) -> None:
    client = Scripted()
    thread = agent_on(url, client).get_new_thread()
    await agent_on(url, client).run("weather", thread=thread)
    state = json.loads(json.dumps(await thread.serialize()))
    assert "rain" not in json.dumps(state)
    resumed = await agent_on(url, client).deserialize_thread(state)
    await agent_on(url, client).run("And now?", thread=resumed)
    assert client.shown[-1] == ["user", "assistant", "tool", "assistant", "user"]
    assert await texts(thread.message_store) == ["weather", "", "", "seen 3", "And now?", "seen 5"]
    await thread.message_store.aclose()
    await resumed.message_store.aclose()


async def test_a_thread_goes_on_after_the_lines_of_the_document(url: str, program: Any) -> None:
    client = Scripted()
    agent_on_url = program("threads.py")["agent_on"]
    thread = agent_on_url(client, url).get_new_thread()
    await agent_on_url(client, url).run("Where is my bag?", thread=thread)
    resumed = await agent_on_url(client, url).deserialize_thread(await thread.serialize())
    await agent_on_url(client, url).run("And now?", thread=resumed)
    assert await texts(thread.message_store) == ["Where is my bag?", "seen 1", "And now?", "seen 3"]
    assert resumed.message_store.max_messages == 50
    await thread.message_store.aclose()
    await resumed.message_store.aclose()


async def test_a_streamed_run_is_kept(url: str) -> None:
    client = Scripted()
    agent = agent_on(url, client)
    thread = agent.get_new_thread()
    async for _ in agent.run_stream("Hello", thread=thread):
        pass
    assert await texts(thread.message_store) == ["Hello", "seen 1"]
    await thread.message_store.aclose()


async def test_nothing_is_kept_of_a_run_that_failed(url: str) -> None:
    agent = agent_on(url, Scripted())
    thread = agent.get_new_thread()
    with pytest.raises(RuntimeError, match="the model is not there"):
        await agent.run("fail", thread=thread)
    assert await texts(thread.message_store) == []
    assert await thread.message_store.session().exists() is False
    await thread.message_store.aclose()


@pytest.mark.parametrize("names", ["betas", "documentation"])
async def test_a_store_is_resumed_by_its_own_state(url: str, names: str) -> None:
    async with ChatkeepChatMessageStore(url, key_prefix="chat", max_messages=50) as store:
        await store.add_messages(said("a", "b"))
        state = json.loads(json.dumps(await (store.serialize() if names == "betas" else store.serialize_state())))
        if names == "betas":
            resumed = await ChatkeepChatMessageStore.deserialize(state, store=url)
        else:
            resumed = ChatkeepChatMessageStore(url)
            await resumed.deserialize_state(state)
        assert await texts(resumed) == ["a", "b"]
        assert (resumed.thread_id, resumed.key_prefix, resumed.max_messages) == (store.thread_id, "chat", 50)
        await resumed.aclose()


async def test_messages_come_back_as_what_they_were(url: str) -> None:
    call = FunctionCallContent(call_id="c1", name="weather", arguments={"place": "Oslo"})
    messages = [
        ChatMessage(role="user", text="weather", message_id="m1", author_name="Alice"),
        ChatMessage(role="assistant", contents=[call], additional_properties={"cost": 0.5, "raw": b"\0"}),
        ChatMessage(role="tool", contents=[FunctionResultContent(call_id="c1", result={"sky": ["rain"]})]),
    ]
    async with ChatkeepChatMessageStore(url) as store:
        await store.add_messages(messages)
        assert [message.to_dict() for message in await store.list_messages()] == [m.to_dict() for m in messages]
        await store.add_messages(messages[:1])  # Sent again: it has an id.
        await store.add_messages(said("ok"))
        await store.add_messages(said("ok"))  # Said again.
        assert (await texts(store))[3:] == ["ok", "ok"]


async def test_a_trimmed_thread_begins_where_a_turn_starts(url: str) -> None:
    agent = agent_on(url, Scripted(), max_messages=5)
    thread = agent.get_new_thread()
    for question in ("Hello", "weather", "And now?"):
        await agent.run(question, thread=thread)
    roles = [str(message.role) for message in await thread.message_store.list_messages()]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    await thread.message_store.aclose()


async def test_an_answer_to_a_tool_in_the_role_of_a_user_starts_no_turn(url: str) -> None:
    call = FunctionCallContent(call_id="c1", name="weather", arguments="{}")
    answer = FunctionResultContent(call_id="c1", result="rain")
    async with ChatkeepChatMessageStore(url, max_messages=2) as store:
        await store.add_messages([*said("weather"), ChatMessage(role="assistant", contents=[call])])
        await store.add_messages([ChatMessage(role="user", contents=[answer]), ChatMessage(role="assistant", text="!")])
        assert await texts(store) == ["weather", "", "", "!"]


async def test_a_thread_can_be_verified_edited_and_redacted(url: str) -> None:
    calls = [FunctionCallContent(call_id=id, name="weather", arguments={"place": "home"}) for id in ("c1", "c2")]
    answer = FunctionResultContent(call_id="c1", result="rain at home")
    async with ChatkeepChatMessageStore(url) as store:
        await store.add_messages([ChatMessage(role="user", text="weather at home", message_id="m1")])
        await store.add_messages([ChatMessage(role="assistant", contents=calls)])
        await store.add_messages([ChatMessage(role="tool", contents=[answer])])
        log = store.session()
        findings = await log.verify()
        assert "c2" in findings[0].detail  # It has no answer.
        await log.replace(1, said("weather at work")[0])
        assert (await store.list_messages())[0].message_id == "m1"
        for seq in (1, 2, 3):
            await log.redact(seq, "gone")
        redacted = await store.list_messages()
        assert "home" not in json.dumps([message.to_dict() for message in redacted])
        assert await log.verify() == findings
        assert [content.name for content in redacted[1].contents] == ["weather", "weather"]


def test_a_record_of_another_format_is_refused_by_name() -> None:
    record = Record(1, None, "user", True, "chat/1", None, None, b"{}")
    with pytest.raises(CorruptRecordError, match="has the format 'chat/1', and the codec 'agent-framework-beta' reads"):
        BetaMessageCodec().decode({"role": "user", "contents": []}, record)


async def test_clear_takes_out_one_threads_messages(url: str) -> None:
    async with ChatkeepChatMessageStore(url) as one, ChatkeepChatMessageStore(url) as other:
        await one.add_messages(said("a"))
        await other.add_messages(said("b"))
        await one.clear()
        assert (await texts(one), await texts(other)) == ([], ["b"])


async def test_a_thread_that_says_nothing_leaves_nothing(url: str) -> None:
    async with open_store(url) as store:
        thread = ChatkeepChatMessageStore(store)
        await thread.add_messages([])
        await thread.list_messages()
        await thread.serialize()
        assert await store.list_sessions() == []


async def test_prefix_and_thread_id_never_make_the_session_of_another_thread(url: str) -> None:
    async with open_store(url) as store:
        threads = [
            ChatkeepChatMessageStore(store, key_prefix=prefix, thread_id=thread_id)
            for prefix, thread_id in (("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("b", "b:c"))
        ]
        assert len({thread.session_id for thread in threads}) == len(threads)


# Whose database it is


def with_state(**changes: Any) -> dict[str, Any]:
    return {"thread_id": "t1", "url": None, "key_prefix": None, "max_messages": None, **changes}


async def test_the_address_in_a_state_has_no_credentials_and_no_options() -> None:
    store = ChatkeepChatMessageStore("memory://alice:secret@name?ttl=1h")
    state = json.dumps(await store.serialize())
    assert "secret" not in state
    assert "alice" not in state
    await store.update_from_state(with_state(url="memory://bob:other@name"))
    assert store.thread_id == "t1"


@pytest.mark.parametrize("name", ["url", "redis_url"])
async def test_a_state_that_names_another_address_is_refused_unless_it_is_allowed(tmp_path: Path, name: str) -> None:
    url, elsewhere = f"sqlite:///{tmp_path}/own.db", f"sqlite:///{tmp_path}/elsewhere.db"
    async with ChatkeepChatMessageStore(elsewhere, thread_id="t1") as other:
        await other.add_messages(said("not yours"))
    state = with_state(**{name: elsewhere})
    store = ChatkeepChatMessageStore(url, thread_id="own")
    with pytest.raises(ConfigError, match=r"the state names the address sqlite:///.*elsewhere\.db, and this"):
        await store.update_from_state(state)
    with pytest.raises(ConfigError):
        await store.add_messages([carrier(state)])
    with pytest.raises(ConfigError):
        await ChatkeepChatMessageStore.deserialize(state, store=url)
    assert store.thread_id == "own"
    async with ChatkeepChatMessageStore(url, allow_other_address=True) as moved:
        await moved.update_from_state(state)
        assert (moved.thread_id, await texts(moved)) == ("t1", [])  # Its own database, all the same.


async def test_a_store_that_was_passed_in_takes_no_state_of_an_address(url: str) -> None:
    async with open_store(url) as store:
        with pytest.raises(ConfigError, match="whose address it does not know"):
            await ChatkeepChatMessageStore(store).update_from_state(with_state(url=url))
        own = await ChatkeepChatMessageStore(store, thread_id="t1").serialize()
        assert (await ChatkeepChatMessageStore.deserialize(own, store=store)).thread_id == "t1"


async def test_a_state_is_read_in_the_scope_of_the_store(url: str) -> None:
    async with open_store(url) as store:
        alices = ChatkeepChatMessageStore(store, user="alice", thread_id="t1")
        await alices.add_messages(said("Hello"))
        taken = await alices.serialize()
        bobs = await ChatkeepChatMessageStore.deserialize(taken, store=store, user="bob")
        assert await texts(bobs) == []
        assert await texts(await ChatkeepChatMessageStore.deserialize(taken, store=store.scoped(user="alice"))) == [
            "Hello"
        ]


async def test_the_state_of_the_frameworks_redis_store_is_taken(url: str) -> None:
    state = {"type": "redis_store_state", "thread_id": "t1", "redis_url": None, "key_prefix": "chat", "max_messages": 9}
    store = ChatkeepChatMessageStore(url)
    await store.deserialize_state(state)
    assert (store.session_id, store.max_messages) == ("chat:t1", 9)
    moved = ChatkeepChatMessageStore(url, allow_other_address=True)
    await moved.deserialize_state({**state, "redis_url": "redis://:secret@cache:6379/0"})
    assert moved.thread_id == "t1"
    with pytest.raises(ConfigError, match="redis://cache:6379/0") as refused:
        await ChatkeepChatMessageStore(url).deserialize_state({**state, "redis_url": "redis://:secret@cache:6379/0"})
    assert "secret" not in str(refused.value)


async def test_a_prefix_and_a_limit_that_are_configured_are_no_states_to_change(url: str) -> None:
    store = ChatkeepChatMessageStore(url, key_prefix="alice", max_messages=50, thread_id="own")
    for prefix in ("bob", None):
        with pytest.raises(ConfigError, match=r"the state names the key prefix .* configured with 'alice'"):
            await store.update_from_state(with_state(key_prefix=prefix, max_messages=1))
    assert (store.session_id, store.max_messages) == ("alice:own", 50)
    for _ in range(2):
        await store.update_from_state(with_state(key_prefix="alice", max_messages=1))
        assert (store.session_id, store.max_messages) == ("alice:t1", 50)


async def test_messages_whose_ids_are_used_again_are_all_kept(url: str) -> None:
    def message(role: str, text: str, id: str = "m") -> Any:
        return ChatMessage(role=role, text=text, message_id=id)

    async with ChatkeepChatMessageStore(url) as store:
        await store.add_messages([message("user", "1", "u"), message("assistant", "a"), message("assistant", "b")])
        await store.add_messages([message("user", "2", "u"), message("assistant", "c")])
        await store.add_messages([message("user", "1", "u"), message("assistant", "d", "n")])
        await store.add_messages([message("user", "1", "u")])  # the same message
        await store.add_messages([message("assistant", "d", "n")])  # an answer, which is another
        assert await texts(store) == ["1", "a", "b", "2", "c", "d", "d"]
        assert [each.message_id for each in await store.list_messages()] == ["u", "m", "m", "u", "m", "n", "n"]
        await store.session().redact(2)
        last = (await store.list_messages())[2]
        last.contents[0].text = "b, edited"
        await store.session().replace(3, last)
        assert await texts(store) == ["1", "[redacted]", "b, edited", "2", "c", "d", "d"]


@pytest.mark.parametrize(
    "state", [["t1"], {"thread_id": 7}, {"messages": []}, with_state(max_messages=-1), with_state(url=7)]
)
async def test_what_is_no_state_is_refused_and_changes_nothing(url: str, state: Any) -> None:
    store = ChatkeepChatMessageStore(url, thread_id="own")
    with pytest.raises(CorruptRecordError, match="state"):
        await store.update_from_state(state)
    assert store.thread_id == "own"
    await store.update_from_state({})
    assert store.thread_id == "own"


def carrier(state: dict[str, Any]) -> Any:
    return ChatMessage(role="system", contents=[], additional_properties={"chatkeep_thread": state})


async def test_no_message_of_a_user_carries_a_state(url: str) -> None:
    async with ChatkeepChatMessageStore(url, thread_id="own") as store:
        carrying = carrier(with_state())
        carrying.role = "user"
        await store.add_messages([carrying])
        assert (store.thread_id, await texts(store)) == ("own", [""])


async def test_a_message_that_carries_a_state_moves_no_store_that_was_used(url: str) -> None:
    async with open_store(url) as store:
        await ChatkeepChatMessageStore(store, thread_id="t1").add_messages(said("not this one"))
        read, written, beside, speaking = (ChatkeepChatMessageStore(store) for _ in range(4))
        await read.list_messages()
        await read.add_messages([carrier(with_state())])
        await written.add_messages(said("Hello"))
        await written.add_messages([carrier(with_state())])
        await beside.add_messages([carrier(with_state()), *said("Hello")])
        spoken = ChatMessage(role="user", text="Hi", additional_properties={"chatkeep_thread": with_state()})
        await speaking.add_messages([spoken])
        kept = [await texts(thread) for thread in (read, written, beside, speaking)]
    assert kept == [[""], ["Hello", ""], ["", "Hello"], ["Hi"]]


# One store for many threads


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_thousand_threads_share_one_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    before = threading.active_count(), open_files()
    threads = [ChatkeepChatMessageStore(url) for _ in range(1000)]
    await asyncio.gather(*(thread.add_messages(said(str(n))) for n, thread in enumerate(threads)))
    assert threading.active_count() - before[0] < 20
    assert open_files() - before[1] < 60
    assert [await texts(threads[n]) for n in (0, 999)] == [["0"], ["999"]]
    await asyncio.gather(*(thread.aclose() for thread in threads))


async def test_closing_one_closes_nobody_elses(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    one, other, forgotten = (ChatkeepChatMessageStore(url) for _ in range(3))
    for thread in (one, other, forgotten):
        await thread.add_messages(said("a"))
    shared = other.session()
    del thread, forgotten
    gc.collect()
    await one.aclose()
    await one.aclose()
    assert await texts(other) == ["a"]
    await other.aclose()
    with pytest.raises(StoreClosedError):
        await shared.count()
    assert await texts(other) == ["a"]  # Used again, it holds a store again.
    await other.aclose()


async def test_whoever_comes_while_the_last_one_closes_gets_an_open_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    for _ in range(3):
        last, next_one = ChatkeepChatMessageStore(url, thread_id="t1"), ChatkeepChatMessageStore(url, thread_id="t1")
        await last.add_messages(said("a"))
        closing = asyncio.ensure_future(last.aclose())
        await asyncio.sleep(0)
        await next_one.add_messages(said("b"))
        await closing
        await next_one.aclose()


async def test_a_store_that_is_passed_in_is_not_closed(url: str) -> None:
    async with open_store(url) as store:
        async with ChatkeepChatMessageStore(store) as thread:
            await thread.add_messages(said("a"))
        assert await texts(thread) == ["a"]


async def test_other_options_are_another_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with (
        ChatkeepChatMessageStore(url, thread_id="t1", max_messages=0) as none,
        ChatkeepChatMessageStore(url, thread_id="t2", ttl="1h") as all_of_them,
    ):
        await none.add_messages(said("a"))
        await all_of_them.add_messages(said("b"))
        assert (await texts(none), await texts(all_of_them)) == ([], ["b"])


async def test_options_that_cannot_be_are_refused(url: str) -> None:
    async with open_store(url) as store:
        with pytest.raises(ConfigError, match=r"give max_messages, ttl to open_store\(url, max_messages=…\)"):
            ChatkeepChatMessageStore(store, ttl="1h", max_messages=3)
    with pytest.raises(ConfigError, match="open the store yourself"):
        ChatkeepChatMessageStore(url, types=[str]).session()
    with pytest.raises(TypeError, match="ChatkeepChatMessageStore takes a store, a scope of one or a URL, not int"):
        ChatkeepChatMessageStore(7)  # type: ignore[arg-type]


def test_what_is_for_1_x_says_what_to_install_in_the_place_of_a_beta() -> None:
    for name, wanted in (("ChatkeepHistoryProvider", ">=1.0,<2"), ("ChatkeepSessionStore", ">=1.13,<2")):
        with pytest.raises(ImportError, match=f"{name} .*pip install 'agent-framework-core{wanted}'"):
            getattr(chatkeep_adapters.agent_framework, name)


async def test_what_is_no_message_of_the_betas_is_refused(url: str) -> None:
    async with open_store(url) as store:
        thread = ChatkeepChatMessageStore(store, thread_id="t1")
        with pytest.raises(SerializationError, match=r"is an agent_framework\.ChatMessage, not str"):
            await thread.add_messages(["Hello"])
        await store.session("t1").append([PortableMessage.user("Hello")])
        with pytest.raises(CorruptRecordError, match="read it with the codec that wrote it"):
            await thread.list_messages()


async def test_a_thread_given_a_store_of_its_own_keeps_it(url: str) -> None:
    async with ChatkeepChatMessageStore(url) as store:
        thread = AgentThread(message_store=store)
        await ChatAgent(chat_client=Scripted()).run("Hello", thread=thread)
        assert await texts(store) == ["Hello", "seen 1"]
