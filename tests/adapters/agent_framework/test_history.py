"""`ChatkeepHistoryProvider` with real agents of the framework, on every backend."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agent_framework import Agent, AgentSession, Content, ContextProvider, InMemoryHistoryProvider, Message
from tests.adapters.agent_framework.conversations import Opener, Persistent, ask, calls, lose_answer, said, weather

import chatkeep.sync
from chatkeep import (
    ConfigError,
    CorruptRecordError,
    InvalidIdError,
    OutcomeUnknownError,
    StoreClosedError,
    Window,
    WindowError,
    drop_tool_bodies,
    summarise,
)
from chatkeep.records import Rewrite, Span, Write
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider


class Counting:
    """Counts a store's calls of its backend, and the records that it reads."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.records = 0
        for name in ("commit", "read", "head", "sessions"):
            monkeypatch.setattr(store.backend, name, self._counted(name, getattr(store.backend, name)))

    def _counted(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            answer = await method(*args, **kwargs)
            if name == "read":
                self.records += len(answer.records or answer.bodies or ())
            return answer

        return counted


# A conversation


@pytest.mark.parametrize("each_call", [False, True], ids=["each run", "each call"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_agent_goes_on_with_a_conversation_that_another_process_has_had(
    opened: Opener, scripted: Any, stream: bool, each_call: bool
) -> None:
    def agent(client: Any) -> Any:
        return Agent(
            client,
            tools=[weather],
            context_providers=[ChatkeepHistoryProvider(opened())],
            require_per_service_call_history_persistence=each_call,
        )

    first = scripted(calls("Oslo", "Rome"), "It is sunny in both.")
    await ask(agent(first), "How is Oslo, and Rome?", AgentSession(session_id="trip"), stream=stream)
    second = scripted("Take sun glasses.")
    assert await ask(agent(second), "What do I pack?", AgentSession(session_id="trip"), stream=stream) == (
        "Take sun glasses."
    )
    (shown,) = second.asked
    assert said(shown) == [
        ("user", "How is Oslo, and Rome?"),
        ("assistant", ["function_call", "function_call"]),
        ("tool", ["function_result", "function_result"]),
        ("assistant", "It is sunny in both."),
        ("user", "What do I pack?"),
    ]
    assert [content.call_id for content in shown[1].contents] == ["call-Oslo", "call-Rome"]
    assert [content.result for content in shown[2].contents] == ["sunny in Oslo", "sunny in Rome"]
    assert len(await ChatkeepHistoryProvider(opened()).get_messages("trip")) == 6


async def test_parallel_runs_of_different_sessions_keep_apart(store: Any, scripted: Any) -> None:
    client = scripted(*[lambda shown: f"to {shown[-1].text}"] * 40)
    agent = Agent(client, context_providers=[ChatkeepHistoryProvider(store)])
    sessions = [AgentSession(session_id=f"session-{number}") for number in range(20)]
    for turn in ("one", "two"):
        await asyncio.gather(*(ask(agent, f"{turn} {session.session_id}", session) for session in sessions))
    for session in sessions:
        name = session.session_id
        found = await ChatkeepHistoryProvider(store).get_messages(name)
        assert [message.text for message in found] == [f"one {name}", f"to one {name}", f"two {name}", f"to two {name}"]


async def test_a_provider_with_a_url_opens_its_store_and_closes_it(url: str, scripted: Any) -> None:
    async with ChatkeepHistoryProvider(url, ttl="30d") as provider:
        await ask(Agent(scripted(), context_providers=[provider]), "Hello?", AgentSession(session_id="hello"))
        assert said(await provider.get_messages("hello")) == [("user", "Hello?"), ("assistant", "ok")]
        info = await provider.session("hello").info()
        assert info is not None
        assert info.expires_at is not None
    await provider.aclose()
    with pytest.raises(StoreClosedError):
        await provider.get_messages("hello")


async def test_a_store_that_is_passed_in_stays_open(store: Any) -> None:
    async with ChatkeepHistoryProvider(store) as provider:
        await provider.save_messages("a", [Message("user", ["Hello?"])])
    assert (await store.list_sessions())[0].id == "a"


def test_options_beside_a_store_that_is_open_are_refused(store: Any) -> None:
    with pytest.raises(ConfigError, match=r"give max_messages, ttl to open_store\(url, max_messages=…\): this store"):
        ChatkeepHistoryProvider(store, ttl="30d", max_messages=5)


@pytest.mark.parametrize(
    ("name", "words"), [("tenat", ": did you mean tenant?"), ("xyz", ", neither of a store nor here")]
)
def test_an_option_beside_a_store_that_nobody_knows_is_refused(store: Any, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name!r} is no option{words}")):
        ChatkeepHistoryProvider(store, **{name: "x"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "takes a store, a scope of one or a URL, not int"),
        (chatkeep.sync.open_store("memory://"), r"takes a store of chatkeep\.open_store, not one of chatkeep\.sync"),
    ],
)
def test_what_is_no_store_is_refused(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"^ChatkeepHistoryProvider {words}"):
        ChatkeepHistoryProvider(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ok", r"takes a list of messages, not str: save_messages\(id, \[message\]\)"),
        ({"role": "user"}, "takes a list of messages, not dict"),
        (Message("user", ["ok"]), "takes a list of messages, not Message"),
        ([Message("user", ["ok"]), "ok"], r"messages\[1\] must be an agent_framework\.Message, not str: Message\("),
        ([{"role": "user"}], r"messages\[0\] must be an agent_framework\.Message, not dict"),
    ],
)
async def test_what_is_no_list_of_messages_is_refused_and_nothing_is_saved(store: Any, given: Any, words: str) -> None:
    provider = ChatkeepHistoryProvider(store)
    with pytest.raises(TypeError, match=words):
        await provider.save_messages("a", given)
    assert not await provider.session("a").exists()


async def test_a_search_for_no_text_is_refused(store: Any) -> None:
    with pytest.raises(TypeError, match="query must be a str of the words to search for, not NoneType"):
        await ChatkeepHistoryProvider(store).search("a", None)  # type: ignore[arg-type]


async def test_a_history_without_a_session_id_is_refused_in_words(store: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    for call in (provider.get_messages(None), provider.save_messages(None, [Message("user", ["ok"])])):
        with pytest.raises(InvalidIdError, match=r"session_id is None.*session=agent\.create_session\(\)"):
            await call
    with pytest.raises(InvalidIdError, match="session_id is None"):
        await provider.clear(None)


# Saving


async def test_what_a_save_costs_does_not_grow_with_the_history(
    store: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ChatkeepHistoryProvider(store, load_messages=False)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="long")
    await ask(agent, "first", session)
    counting = Counting(store, monkeypatch)
    costs = []
    for size in (2, 1_000):
        missing = size - await provider.log("long").count()
        await provider.log("long").append([Message("user", [f"message {number}"]) for number in range(missing)])
        counting.calls.clear()
        await ask(agent, "one more", session)
        costs.append((list(counting.calls), counting.records))
    assert costs == [(["commit"], 0)] * 2, "one append, and nothing read"


@pytest.mark.parametrize("size", [10, 1_000])
async def test_a_save_reads_one_message_of_the_log_where_it_is_new_and_else_no_more_than_it_is_long(
    store: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    provider = ChatkeepHistoryProvider(store)
    await provider.log("long").append([Message("user", [f"message {number}"]) for number in range(size)])
    counting = Counting(store, monkeypatch)
    turn = [Message("user", ["a"]), Message("assistant", ["b"])]
    await provider.save_messages("long", turn)
    assert (sorted(counting.calls), counting.records) == (["commit", "read"], 1)
    await provider.save_messages("long", [*map(copy.deepcopy, turn), Message("user", ["c"])])
    assert counting.records < 50
    assert await provider.log("long").count() == size + 3


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_of_a_run_that_failed_nothing_is_stored(store: Any, scripted: Any, stream: bool) -> None:
    provider = ChatkeepHistoryProvider(store)
    client = scripted("fine", calls("Oslo"), RuntimeError("the service is down"), "fine again")
    agent, session = Agent(client, tools=[weather], context_providers=[provider]), AgentSession(session_id="down")
    await ask(agent, "Hello?", session, stream=stream)
    with pytest.raises(Exception, match="the service is down"):
        await ask(agent, "How is Oslo?", session, stream=stream)
    assert said(await provider.get_messages("down")) == [("user", "Hello?"), ("assistant", "fine")]
    await ask(agent, "Still there?", session, stream=stream)
    assert said(client.asked[-1]) == [("user", "Hello?"), ("assistant", "fine"), ("user", "Still there?")]


async def test_a_tool_that_failed_is_stored_with_its_call(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    client = scripted(calls("Atlantis"), "There is no such city.")
    agent = Agent(client, tools=[weather], context_providers=[provider])
    await ask(agent, "How is Atlantis?", AgentSession(session_id="tool"))
    messages = await provider.get_messages("tool")
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2].contents[0].exception, "that it failed is kept"
    assert await provider.log("tool").verify() == []


async def test_of_a_stream_that_is_cancelled_nothing_is_stored(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    agent, session = Agent(scripted("one two three"), context_providers=[provider]), AgentSession(session_id="stream")
    begun = asyncio.Event()

    async def listen() -> None:
        async for _ in agent.run("Count!", session=session, stream=True):
            begun.set()
            await asyncio.Event().wait()

    listening = asyncio.create_task(listen())
    await begun.wait()
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert await provider.get_messages("stream") == []
    assert not await store.session("stream").exists()


async def test_a_save_whose_answer_was_lost_can_be_made_again_and_is_stored_once(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ChatkeepHistoryProvider(store)
    turn = [Message("user", ["ok"]), Message("assistant", ["ok"])]
    await provider.save_messages("lost", turn)
    lose_answer(store, monkeypatch)
    with pytest.raises(OutcomeUnknownError):
        await provider.save_messages("lost", turn)
    await provider.save_messages("lost", turn)
    assert len(await provider.get_messages("lost")) == 4
    await provider.save_messages("lost", turn)
    assert len(await provider.get_messages("lost")) == 6, "which is a turn of its own again"


async def test_a_run_whose_save_is_tried_again_is_stored_once(
    store: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Persistent(store)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="lost")
    await ask(agent, "ok", session)
    lose_answer(store, monkeypatch)
    await ask(agent, "ok", session)
    assert len(await provider.get_messages("lost")) == 4


async def test_a_run_whose_save_is_lost_for_good_says_so(
    store: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ChatkeepHistoryProvider(store)
    agent, session = Agent(scripted(), context_providers=[provider]), AgentSession(session_id="lost")
    lose_answer(store, monkeypatch)
    with pytest.raises(OutcomeUnknownError):
        await ask(agent, "ok", session)
    await ask(agent, "ok", session)
    assert len(await provider.get_messages("lost")) == 4, "another run is another turn"


async def test_what_cannot_be_stored_is_an_error_with_its_path_and_nothing_is_written(store: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    message = Message("user", ["ok"], additional_properties={"score": float("nan")})
    with pytest.raises(ValueError, match=r"messages\[1\].*score"):
        await provider.save_messages("nan", [Message("user", ["ok"]), message])
    assert not await store.session("nan").exists()


# Reading


async def test_the_model_is_shown_whole_turns_that_fit_the_window(store: Any, scripted: Any) -> None:
    client = scripted(calls("Oslo"), "sunny", calls("Rome"), "sunny", "bye")
    session = AgentSession(session_id="window")
    agent = Agent(
        client, tools=[weather], context_providers=[ChatkeepHistoryProvider(store, window=Window(max_messages=5))]
    )
    for question in ("How is Oslo?", "How is Rome?", "Bye"):
        await ask(agent, question, session)
    assert said(client.asked[-1]) == [
        ("user", "How is Rome?"), ("assistant", ["function_call"]), ("tool", ["function_result"]),
        ("assistant", "sunny"), ("user", "Bye"),
    ]  # fmt: skip
    assert len(await ChatkeepHistoryProvider(store).get_messages("window")) == 10, "all of it is kept"


async def test_reducers_change_what_the_model_is_shown_and_not_what_is_kept(store: Any, scripted: Any) -> None:
    client = scripted(calls("Oslo"), "sunny", "fine", "bye")
    session = AgentSession(session_id="reduced")

    def summary(messages: list[Message]) -> Message:
        return Message("system", [f"{len(messages)} messages before"])

    windows: list[Window[Message]] = [
        Window(max_tokens=1_000),
        Window(reducers=[drop_tool_bodies(keep_last=0)]),
        Window(reducers=[summarise(summary, keep_turns=1)]),
    ]
    for question, window in zip(("How is Oslo?", "Good", "Bye"), windows, strict=True):
        provider = ChatkeepHistoryProvider(store, window=window)
        await ask(Agent(client, tools=[weather], context_providers=[provider]), question, session)
    assert client.asked[2][2].contents[0].result == "[dropped]"
    assert said(client.asked[3]) == [
        ("system", "4 messages before"), ("user", "Good"), ("assistant", "fine"), ("user", "Bye"),
    ]  # fmt: skip
    kept = await ChatkeepHistoryProvider(store).get_messages("reduced")
    assert len(kept) == 8
    assert kept[2].contents[0].result == "sunny in Oslo"


async def test_a_turn_larger_than_the_window_is_an_error_before_the_model_is_asked(store: Any, scripted: Any) -> None:
    client, session = scripted(), AgentSession(session_id="large")
    await ChatkeepHistoryProvider(store).save_messages("large", [Message("user", ["long " * 100])])
    provider = ChatkeepHistoryProvider(store, window=Window(max_tokens=10))
    with pytest.raises(WindowError):
        await ask(Agent(client, context_providers=[provider]), "Hello?", session)
    assert client.asked == []


def test_a_window_of_another_kind_is_refused(store: Any) -> None:
    with pytest.raises(TypeError, match=r"window must be a Window, not int: window=Window\(max_tokens=8000\)"):
        ChatkeepHistoryProvider(store, window=20)  # type: ignore[arg-type]


async def damage(store: Any, provider: ChatkeepHistoryProvider, session_id: str, place: int) -> None:
    """Spoil the record at that place of the main log, past every check."""
    log = provider.log(session_id)
    record = (await log.records(Span(after=place - 1, limit=1))).records[0]
    await log.commit(Write(b"0" * 16, rewrite=Rewrite(record._replace(payload=b"\x00damaged"), None)))


@pytest.mark.parametrize("policy", ["skip", "raw"])
@pytest.mark.parametrize("place", [2, 3], ids=["the call", "the result"])
async def test_a_damaged_message_takes_nothing_with_it_but_the_other_half_of_a_call(
    opened: Opener, scripted: Any, policy: str, place: int
) -> None:
    store = opened(on_corrupt=policy)
    provider, session = ChatkeepHistoryProvider(store), AgentSession(session_id="damaged")
    client = scripted(calls("Oslo"), "sunny", "bye")
    agent = Agent(client, tools=[weather], context_providers=[provider])
    await ask(agent, "How is Oslo?", session)
    await damage(store, provider, "damaged", place)
    await ask(agent, "Bye", session)
    assert said(client.asked[-1]) == [("user", "How is Oslo?"), ("assistant", "sunny"), ("user", "Bye")]


@pytest.mark.parametrize("place", [2, 3, 6, 7], ids=["first call", "first result", "second call", "second result"])
async def test_of_calls_with_one_id_in_each_turn_the_damaged_one_alone_is_left_out(
    opened: Opener, scripted: Any, place: int
) -> None:
    store = opened(on_corrupt="skip")
    provider, session = ChatkeepHistoryProvider(store), AgentSession(session_id="damaged")
    client = scripted(calls("Oslo"), "sunny", calls("Oslo"), "still sunny")
    agent = Agent(client, tools=[weather], context_providers=[provider])
    await ask(agent, "How is Oslo?", session)
    await ask(agent, "And now?", session)
    await damage(store, provider, "damaged", place)
    turns = [("assistant", ["function_call"]), ("tool", ["function_result"])]
    first, second = ([], turns) if place < 4 else (turns, [])
    assert said(await provider.get_messages("damaged")) == [
        ("user", "How is Oslo?"), *first, ("assistant", "sunny"),
        ("user", "And now?"), *second, ("assistant", "still sunny"),
    ]  # fmt: skip


async def test_a_call_that_a_service_has_made_itself_is_shown_though_something_is_damaged(opened: Opener) -> None:
    store = opened(on_corrupt="skip")
    provider = ChatkeepHistoryProvider(store)
    made = Content.from_function_call("c", "search")
    if not hasattr(made, "informational_only"):
        pytest.skip("this framework has no calls that are only told of")
    made.informational_only = True
    told = [Message("user", ["1"]), Message("assistant", [Content.from_text("a"), made]), Message("user", ["2"])]
    await provider.save_messages("s", told)
    await damage(store, provider, "s", 3)
    assert [content.type for content in (await provider.get_messages("s"))[1].contents] == ["text", "function_call"]


async def test_a_damaged_message_is_an_error_where_nothing_else_was_asked_for_and_can_be_mended(
    store: Any, scripted: Any
) -> None:
    provider, session = ChatkeepHistoryProvider(store), AgentSession(session_id="damaged")
    agent = Agent(scripted(), context_providers=[provider])
    await ask(agent, "Hello?", session)
    await damage(store, provider, "damaged", 1)
    with pytest.raises(CorruptRecordError, match="message 1 of session 'damaged'"):
        await ask(agent, "Still there?", session)
    await provider.log("damaged").repair()
    await ask(agent, "Still there?", session)
    assert said(await provider.get_messages("damaged")) == [
        ("assistant", "ok"), ("user", "Still there?"), ("assistant", "ok"),
    ]  # fmt: skip


# Several providers, several tenants


class Docs(ContextProvider):
    """Adds a document to every run."""

    def __init__(self) -> None:
        super().__init__("docs")
        self.runs = 0

    async def before_run(self, *, context: Any, **_: Any) -> None:
        self.runs += 1
        context.extend_messages(self, [Message("user", [f"document {self.runs}"])])


async def test_providers_of_one_agent_keep_apart_and_clearing_one_leaves_the_other(store: Any, scripted: Any) -> None:
    history = ChatkeepHistoryProvider(store)
    audit = ChatkeepHistoryProvider(store, source_id="audit", load_messages=False, store_inputs=False)
    client = scripted()
    agent, session = Agent(client, context_providers=[history, audit]), AgentSession(session_id="both")
    for question in ("one", "two"):
        await ask(agent, question, session)
    assert len(client.asked[-1]) == 3, "the audit is not shown"
    assert client.offered[-1] == [], "a tool for searching is given where it was asked for"
    assert said(await audit.get_messages("both")) == [("assistant", "ok")] * 2
    await audit.clear("both")
    assert await audit.get_messages("both") == []
    assert len(await history.get_messages("both")) == 4


@pytest.mark.parametrize("other", ["chatkeep", "in memory"])
@pytest.mark.parametrize("docs_first", [True, False], ids=["docs first", "docs last"])
async def test_an_audit_of_everything_that_the_model_is_shown_grows_by_what_is_new(
    store: Any, scripted: Any, other: str, docs_first: bool
) -> None:
    history: Any = ChatkeepHistoryProvider(store) if other == "chatkeep" else InMemoryHistoryProvider("memory")
    audit = ChatkeepHistoryProvider(store, source_id="audit", load_messages=False, store_context_messages=True)
    context = [Docs(), history] if docs_first else [history, Docs()]
    agent, session = Agent(scripted(), context_providers=[*context, audit]), AgentSession(session_id="audit")
    for question in ("ok", "ok", "go on"):
        await ask(agent, question, session)
    found = [message.text for message in await audit.get_messages("audit")]
    assert found == [
        "document 1", "ok", "ok", "document 2", "ok", "ok", "document 3", "go on", "ok",
    ]  # fmt: skip


async def test_only_the_context_that_was_asked_for_is_stored(store: Any, scripted: Any) -> None:
    history = ChatkeepHistoryProvider(store)
    audit = ChatkeepHistoryProvider(
        store, source_id="audit", load_messages=False, store_context_messages=True, store_context_from={"docs"}
    )
    agent, session = Agent(scripted(), context_providers=[history, Docs(), audit]), AgentSession(session_id="some")
    for question in ("one", "two"):
        await ask(agent, question, session)
    assert [message.text for message in await audit.get_messages("some")] == [
        "document 1", "one", "ok", "document 2", "two", "ok",
    ]  # fmt: skip
    assert len(await history.get_messages("some")) == 4, "documents are no part of it"


async def test_no_other_tenant_or_user_finds_a_history_by_its_session_id(store: Any, scripted: Any) -> None:
    alice = ChatkeepHistoryProvider(store, tenant="acme", user="alice")
    others = [
        ChatkeepHistoryProvider(store, tenant="acme", user="bob"),
        ChatkeepHistoryProvider(store.scoped(tenant="rival"), user="alice"),
        ChatkeepHistoryProvider(store),
    ]
    await ask(Agent(scripted(), context_providers=[alice]), "My secret", AgentSession(session_id="shared"))
    for other in others:
        assert await other.get_messages("shared") == []
        assert await other.list_sessions() == []
        await other.clear("shared")
        await ask(Agent(scripted(), context_providers=[other]), "Hello?", AgentSession(session_id="shared"))
        assert said(await other.get_messages("shared")) == [("user", "Hello?"), ("assistant", "ok")]
    assert said(await alice.get_messages("shared")) == [("user", "My secret"), ("assistant", "ok")]
    assert [info.id for info in await alice.list_sessions()] == ["shared"]


def test_a_user_who_was_not_looked_up_is_refused(store: Any) -> None:
    with pytest.raises(InvalidIdError, match="user must be a str, not NoneType"):
        ChatkeepHistoryProvider(store, tenant="acme", user=None)  # type: ignore[arg-type]


async def test_sessions_are_listed_with_their_titles(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store, user="alice")
    agent = Agent(scripted(), context_providers=[provider])
    for name in ("first", "second"):
        await ask(agent, "Hello?", AgentSession(session_id=name))
        await provider.session(name).update(title=f"the {name}")
    assert {info.title for info in await provider.list_sessions()} == {"the first", "the second"}
    assert [info.id for info in await provider.list_sessions(title="the first")] == ["first"]
    (page,) = [await provider.list_sessions(limit=1)]
    assert len(await provider.list_sessions(after=page.next)) == 1


# Searching


async def test_the_model_looks_up_what_it_is_not_shown(store: Any, scripted: Any) -> None:
    provider = ChatkeepHistoryProvider(store, window=Window(max_messages=2), search_tool=True)
    lookup = [Content.from_function_call("s1", "search_history", arguments='{"query": "BAG number"}')]
    client = scripted("noted", "fine", "well", lookup, "It was AB 123.")
    agent, session = Agent(client, context_providers=[provider]), AgentSession(session_id="search")
    for question in ("My bag has the number AB 123", "It is a red bag", "How are you?"):
        await ask(agent, question, session)
    assert await ask(agent, "Which number was it?", session) == "It was AB 123."
    assert said(client.asked[3]) == [("user", "How are you?"), ("assistant", "well"), ("user", "Which number was it?")]
    assert client.asked[4][-1].contents[0].result == "[user] My bag has the number AB 123\n[user] It is a red bag"


async def test_a_search_finds_most_words_first_then_the_newest_and_nobody_elses(opened: Opener) -> None:
    store = opened(on_corrupt="skip")
    provider = ChatkeepHistoryProvider(store, user="alice")
    texts = ["red bag", "red", "Große TASCHE", "bag", "RED", "nothing"]
    await provider.log("s").append([Message("user", [text]) for text in texts])
    await ChatkeepHistoryProvider(store, user="bob").log("s").append([Message("user", ["red bag of bob"])])
    await provider.log("t").append([Message("user", ["red bag of another session"])])
    await damage(store, provider, "s", 6)

    async def found(query: str, **limit: int) -> list[str]:
        return [message.text for message in await provider.search("s", query, **limit)]

    assert await found("red bag") == ["red bag", "RED", "bag", "red"]
    assert await found("red bag", limit=2) == ["red bag", "RED"]
    assert await found("GROSSE") == ["Große TASCHE"]
    assert await found("") == []
    with pytest.raises(ValueError, match="limit must be an int of 1 or more, not 0"):
        await found("red", limit=0)


async def test_a_search_reads_a_long_history_to_its_end(store: Any) -> None:
    provider = ChatkeepHistoryProvider(store)
    await provider.log("long").append([Message("user", [f"message {number}"]) for number in range(1_200)])
    assert [message.text for message in await provider.search("long", "message 1199")] == [
        "message 1199", "message 1198", "message 1197", "message 1196", "message 1195",
    ]  # fmt: skip


# A process that dies


async def test_a_call_that_was_never_answered_is_found_and_mended(store: Any, scripted: Any) -> None:
    """Where each call of the model is saved, a process can die between a call and its result."""
    running, session = asyncio.Event(), AgentSession(session_id="dead")

    async def weather(city: str) -> str:
        """How the weather is."""
        running.set()
        await asyncio.Event().wait()
        return city

    provider = ChatkeepHistoryProvider(store)
    client = scripted(calls("Oslo"), "fine")
    agent = Agent(
        client, tools=[weather], context_providers=[provider], require_per_service_call_history_persistence=True
    )
    run = asyncio.create_task(ask(agent, "How is Oslo?", session))
    await running.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [finding.kind for finding in await provider.log("dead").verify()] == ["call without result"]
    await provider.log("dead").repair()
    await ask(agent, "Still there?", session)
    assert said(client.asked[-1]) == [("user", "How is Oslo?"), ("user", "Still there?")]


@pytest.mark.parametrize("source_id", ["", None, "x" * 600])
def test_a_source_id_that_names_no_log_is_refused_at_once(store: Any, source_id: Any) -> None:
    with pytest.raises(InvalidIdError, match="source_id"):
        ChatkeepHistoryProvider(store, source_id=source_id)
