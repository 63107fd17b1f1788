"""The document's programs and the example do what they say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import agent_framework
import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
)

import chatkeep_adapters.agent_framework
from chatkeep import ChatMessage, CorruptRecordError, Window, open_store
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

ROOT = Path(__file__).parents[3]
Program = Callable[[str], dict[str, Any]]

SESSIONS = hasattr(agent_framework, "SessionStore")
if SESSIONS:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # The framework's: session stores are experimental.
        from chatkeep_adapters.agent_framework import ChatkeepSessionStore, FingerprintError
since_1_13 = pytest.mark.skipif(not SESSIONS, reason="this framework has no SessionStore: it came with 1.13")


def test_every_program_of_the_document_is_run_by_a_test(programs: dict[str, str]) -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert set(programs) == set(re.findall(r"""program\("([\w.]+)"\)""", tests))


def test_the_documents_name_every_class_that_keeps_something() -> None:
    def named(file: Path, pattern: str) -> set[str]:
        return set(re.findall(pattern, file.read_text(encoding="utf-8"))) - {"ChatkeepError"}

    ours = {name for name in dir(chatkeep_adapters.agent_framework) if name.startswith("Chatkeep")}
    assert named(ROOT / "docs" / "agent-framework.md", r"Chatkeep[A-Z]\w+") == ours
    every = set().union(*(named(file, r"class (Chatkeep[A-Z]\w+)") for file in (ROOT / "adapters").rglob("*.py")))
    assert named(ROOT / "README.md", r"Chatkeep[A-Z]\w+") == every >= ours


@pytest.mark.parametrize(
    "title", ["in_memory.py", "remember.py", "redis_history.py", "chatkeep_history.py", "threads.py"]
)
def test_from_one_history_to_the_other_it_is_five_lines(programs: dict[str, str], title: str) -> None:
    lines = [line for line in programs[title].splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(lines) <= 5


async def test_an_agent_remembers_after_the_lines_of_the_document(
    scripted: Any, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client = scripted("In Oslo.", "In Oslo.", "In Oslo.", "Still in Oslo.")
    for _ in range(2):
        assert await program("in_memory.py")["main"](client) == "In Oslo."
    assert [message.text for message in client.asked[-1]] == ["Where is my bag?"]
    assert await program("remember.py")["main"](client) == "In Oslo."
    assert await program("remember.py")["main"](client) == "Still in Oslo."
    assert [message.text for message in client.asked[-1]] == ["Where is my bag?", "In Oslo.", "Where is my bag?"]
    assert (tmp_path / "chat.db").exists()


async def test_a_saved_session_goes_on_with_its_history_in_the_store(url: str, scripted: Any, program: Program) -> None:
    session = AgentSession(session_id="support-42")
    session.state["step"] = 3
    answers = [Message("assistant", [text], message_id="m") for text in ("In Oslo.", "In Rome.")]
    agent = Agent(scripted(*answers), context_providers=[InMemoryHistoryProvider()])
    for question in ("Where?", "And where?"):
        await agent.run(question, session=session)
    saved = session.to_dict()
    async with ChatkeepHistoryProvider(url) as history:
        for _ in range(2):
            session = await program("move_saved.py")["move_saved"](saved, history)
        assert (session.session_id, session.state) == ("support-42", {"step": 3})
        client = scripted()
        await Agent(client, context_providers=[history]).run("And now?", session=session)
    assert [message.text for message in client.asked[-1]] == [
        "Where?", "In Oslo.", "And where?", "In Rome.", "And now?",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*FILE_HISTORY")  # the framework says that its file history is an experiment
async def test_histories_move_from_another_provider_once(url: str, program: Program, tmp_path: Path) -> None:
    old: Any = ChatkeepHistoryProvider("memory://")
    if hasattr(agent_framework, "FileHistoryProvider"):  # not in the oldest versions
        old = agent_framework.FileHistoryProvider(tmp_path / "files")
    async with ChatkeepHistoryProvider(url) as new:
        await moved_twice(program, old, new)


async def test_nothing_is_moved_from_a_history_that_keeps_nothing_itself(url: str, program: Program) -> None:
    async with ChatkeepHistoryProvider(url) as new:
        with pytest.raises(TypeError, match="they are in the sessions, see move_saved"):
            await program("move.py")["move"](InMemoryHistoryProvider(), new, ["a"])
        assert not await new.list_sessions()


async def moved_twice(program: Program, old: Any, new: ChatkeepHistoryProvider) -> None:
    for name in ("a", "b"):
        told = [Message("user", [f"I am {name}"]), Message("assistant", ["Hello"], message_id="m")]
        await old.save_messages(name, [*told, Message("user", ["Bye"]), Message("assistant", ["Bye"], message_id="n")])
    for _ in range(2):
        await program("move.py")["move"](old, new, ["a", "b"])
    for name in ("a", "b"):
        assert [message.text for message in await new.get_messages(name)] == [f"I am {name}", "Hello", "Bye", "Bye"]


@pytest.fixture
def redis() -> Iterator[str]:
    """The URL of a server that speaks Redis' protocol, in a thread."""
    missing = "moving from Redis is not tested: pip install --pre agent-framework-redis fakeredis"
    pytest.importorskip("agent_framework_redis", reason=missing)
    server = pytest.importorskip("fakeredis", reason=missing).TcpFakeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_histories_move_from_redis_once(url: str, redis: str, program: Program) -> None:
    old = program("redis_history.py")["history"](redis)
    try:
        async with program("chatkeep_history.py")["history"](url) as new:
            await moved_twice(program, old, new)
            assert new.session("a").scope[:2] == ("support", "acme")
    finally:
        await old.aclose()


async def test_the_history_keeps_whole_turns_where_a_list_would_be_cut_inside_one(url: str, program: Program) -> None:
    call, result = Content.from_function_call("c1", "weather"), Content.from_function_result("c1", result="sunny")
    long = [Message("user", ["long"]), Message("assistant", [call]), Message("tool", [result])]
    long += [Message("assistant", [str(number)]) for number in range(19)]
    async with program("chatkeep_history.py")["history"](url) as history:
        await history.save_messages("a", [Message("user", ["short"]), Message("assistant", ["yes"])])
        await history.save_messages("a", long)
        assert [message.text for message in await history.get_messages("a")][:2] == ["long", ""]


@since_1_13
async def test_what_several_remember_in_one_session_is_all_there_until_the_agent_is_another(
    url: str, program: Program
) -> None:
    names = program("sessions.py")
    async with open_store(url) as store:
        sessions = names["sessions_of"](store, "alice")
        keys = [f"key {number}" for number in range(5)]
        await asyncio.gather(*(names["remember"](sessions, "support-42", key, True) for key in keys))
        session = await sessions.get("support-42")
        assert session is not None
        assert session.state == dict.fromkeys(keys, True)
        with pytest.raises(FingerprintError):
            await ChatkeepSessionStore(store.scoped(tenant="acme", user="alice"), fingerprint="other").get("support-42")
        assert await names["sessions_of"](store, "bob").get("support-42") is None


@since_1_13
async def test_a_history_and_a_session_of_one_scope_are_deleted_together(url: str, program: Program) -> None:
    async with open_store(url) as store:
        sessions = program("sessions.py")["sessions_of"](store, "alice")
        history = ChatkeepHistoryProvider(store, tenant="acme", user="alice")
        for delete, left in ((sessions.delete, 1), (lambda id: history.session(id).delete(), 0)):
            await program("sessions.py")["remember"](sessions, "a", "step", 1)
            await history.clear("a")
            await history.save_messages("a", [Message("user", ["Hello?"])])
            await delete("a")
            assert await sessions.get("a") is None
            assert len(await history.get_messages("a")) == left


@pytest.mark.parametrize("session", [None, ""])
async def test_a_run_without_an_id_is_saved_under_one_that_nobody_knows(
    url: str, scripted: Any, session: str | None
) -> None:
    async with ChatkeepHistoryProvider(url) as history:
        client = scripted()
        agent = Agent(client, context_providers=[history])
        for _ in range(2):
            await agent.run("hi", session=session if session is None else AgentSession(session_id=session))
        assert [len(shown) for shown in client.asked] == [1, 1]
        assert len({info.id for info in await history.list_sessions()}) == 2


async def test_a_pasted_text_over_the_window_ends_no_conversation_that_keeps_it(url: str, scripted: Any) -> None:
    async with ChatkeepHistoryProvider(url, window=Window(max_tokens=50, overflow="keep")) as history:
        client = scripted()
        agent = Agent(client, context_providers=[history])
        for question in ("long " * 500, "And now?", "And then?"):
            await agent.run(question, session=AgentSession(session_id="a"))
    assert [[len(message.text) for message in shown] for shown in client.asked] == [[2500], [2500, 2, 8], [8, 2, 9]]


async def test_a_stream_that_is_broken_off_leaves_nothing(url: str, scripted: Any) -> None:
    async with ChatkeepHistoryProvider(url) as history:
        agent = Agent(scripted("one two three"), context_providers=[history])
        stream = agent.run("hi", session=AgentSession(session_id="a"), stream=True)
        async for _ in stream:
            break
        assert not await history.session("a").exists()


class Service(FunctionInvocationLayer, BaseChatClient):
    """Keeps conversations by ids of its own, and asks nobody who the user is."""

    STORES_BY_DEFAULT = True

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[str]] = {}

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **_: Any
    ) -> Awaitable[ChatResponse[Any]]:
        issued = options.get("conversation_id") or f"conv_{len(self.kept) + 1}"
        self.kept.setdefault(issued, []).extend(message.text for message in messages)
        return self._response(issued)

    async def _response(self, issued: str) -> ChatResponse[Any]:
        return ChatResponse(messages=[Message("assistant", ["Noted."])], conversation_id=issued)


@since_1_13
async def test_a_service_goes_on_with_each_users_own_conversation(url: str, program: Program) -> None:
    service = Service()
    answer = program("service_ids.py")["answer"]
    async with open_store(url) as store:
        for user, question in (("alice", "Where is my bag?"), ("bob", "What did she say?"), ("alice", "And now?")):
            assert await answer(Agent(service), store, user, "support-42", question) == "Noted."
    assert service.kept == {"conv_1": ["Where is my bag?", "And now?"], "conv_2": ["What did she say?"]}


@pytest.mark.parametrize(("load", "twice"), [(True, 1), (False, 0)])
async def test_beside_a_service_that_keeps_the_conversation_a_history_only_writes_down(
    url: str, load: bool, twice: int
) -> None:
    service = Service()
    async with ChatkeepHistoryProvider(url, load_messages=load) as history:
        agent = Agent(service, context_providers=[history])
        session = agent.create_session()
        for question in ("Where?", "And now?"):
            await agent.run(question, session=session)
        assert len(await history.get_messages(session.session_id)) == 4
    assert service.kept["conv_1"].count("Where?") == 1 + twice


async def test_a_log_that_others_write_is_left_to_them_by_a_source_id(url: str, scripted: Any) -> None:
    async with open_store(url) as store:
        await store.session("a").append([ChatMessage(role="user", content="Hello?")])
        with pytest.raises(CorruptRecordError, match="'chat/1'"):
            await ChatkeepHistoryProvider(store).get_messages("a")
        agent = Agent(scripted(), context_providers=[ChatkeepHistoryProvider(store, source_id="agent")])
        assert (await agent.run("hi", session=AgentSession(session_id="a"))).text == "ok"
        assert len(await store.session("a").messages()) == 1


@since_1_13
async def test_what_one_user_has_of_anothers_session_leads_nowhere(url: str, program: Program) -> None:
    async with open_store(url) as store:
        found = await program("refused.py")["main"](store)
    assert found == ["support-42", "support-42", None, None, None]


async def test_a_history_that_services_refuse_is_mended(url: str, program: Program) -> None:
    look_after = program("look_after.py")["look_after"]
    async with ChatkeepHistoryProvider(url) as history:
        call = Message("assistant", [Content.from_function_call("c1", "weather", arguments="{}")])
        await history.save_messages("a", [Message("user", ["How is the weather?"]), call])
        assert await look_after(history, "a") == (["2: call without result"], [])
        assert [message.text for message in await history.get_messages("a")] == ["How is the weather?"]
        assert len((await history.log("a").records()).records) == 2
        assert await look_after(history, "a") == ([], [])


def test_the_example_goes_on_in_another_process_and_lets_nobody_else_in() -> None:
    example = ROOT / "examples" / "agent_framework_resume.py"
    environment = {name: value for name, value in os.environ.items() if name not in ("OPENAI_API_KEY", "CHATKEEP_URL")}
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = re.sub(r"Process \d+", "Process", done.stdout).splitlines()
    assert len(set(re.findall(r"Process \d+", done.stdout))) == 3
    assert said == [
        "Process, alice: How is the weather in Oslo?",
        "  the model is shown 1 messages: user",
        "  the model is shown 3 messages: user, assistant, tool",
        "  It is sunny in Oslo.",
        "Process, alice: And what did I ask you first?",
        "  the model is shown 5 messages: user, assistant, tool, assistant, user",
        "  You asked: How is the weather in Oslo?",
        "Process, bob: What did Alice ask you?",
        "  session trip-42: not found",
    ]


class Responses(BaseHTTPRequestHandler):
    """As much of OpenAI's service as the example asks for; the server's `asked` is what it was sent."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        if asked[-1]["type"] == "function_call_output":
            said: dict[str, Any] = _text(f"It is {asked[-1]['output']}.")
        elif "weather" in str(asked[-1]):
            said = {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "weather",
                "status": "completed",
            }
            said["arguments"] = '{"city": "Oslo"}'
        else:
            said = _text("You asked for the weather.")
        answer = {"id": f"resp_{len(self.server.asked)}", "object": "response", "created_at": 1, "model": "m"}  # type: ignore[attr-defined]
        answer |= {"status": "completed", "output": [said], "parallel_tool_calls": True, "tool_choice": "auto"}
        body = json.dumps({**answer, "tools": []}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _text(text: str) -> dict[str, Any]:
    content = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}


def test_the_example_shows_a_service_the_whole_history_too() -> None:
    """With the framework's client for OpenAI, and a service on this machine."""
    missing = "the example with a real model is not tested: pip install agent-framework-openai"
    pytest.importorskip("agent_framework_openai", reason=missing)
    with HTTPServer(("127.0.0.1", 0), Responses) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment = {name: value for name, value in os.environ.items() if name != "CHATKEEP_URL"}
        environment |= {"OPENAI_API_KEY": "not a key", "OPENAI_MODEL": "m"}
        environment["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
        example = ROOT / "examples" / "agent_framework_resume.py"
        done = subprocess.run(
            [sys.executable, str(example)], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
        )
        server.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1::2] == [
        "  It is sunny in Oslo.", "  You asked for the weather.", "  session trip-42: not found",
    ]  # fmt: skip
    shown = [each.get("role") or each["type"] for each in server.asked[-1]]  # type: ignore[attr-defined]
    assert shown == ["user", "function_call", "function_call_output", "assistant", "user"]
