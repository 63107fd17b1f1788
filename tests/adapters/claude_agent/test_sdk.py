"""The SDK's own functions that read and write a session store do so with ours, on every backend."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
from tests.adapters.claude_agent.documents import documented
from tests.adapters.claude_agent.transcripts import SESSION, Opener, chained, said, title, uuid_of

from chatkeep_adapters.claude_agent import ChatkeepSessionStore

CONVERSATION = chained(
    said("Where is my bag?"), said("In Oslo.", type="assistant"), said("And now?"), said("In Rome.", type="assistant")
)
AGENT = chained(said("Look for the bag", isSidechain=True), said("Found.", type="assistant", isSidechain=True))


def key(folder: Path, session_id: str = SESSION, **more: str) -> Any:
    return {"project_key": sdk.project_key_for_directory(folder), "session_id": session_id, **more}


def texts(messages: list[Any]) -> list[Any]:
    contents = [message.message["content"] for message in messages]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


async def test_what_is_stored_is_read_listed_and_described(sessions: ChatkeepSessionStore, tmp_path: Path) -> None:
    folder = str(tmp_path)
    await sessions.append(key(tmp_path), CONVERSATION)
    older = str(uuid.uuid4())
    await sessions.append(key(tmp_path, older), chained(said("Another day"), session_id=older))
    await sessions.append(key(tmp_path), [title("The bag")])
    messages = await sdk.get_session_messages_from_store(sessions, SESSION, folder)
    assert texts(messages) == ["Where is my bag?", "In Oslo.", "And now?", "In Rome."]
    assert texts(await sdk.get_session_messages_from_store(sessions, SESSION, folder, limit=2, offset=1)) == [
        "In Oslo.", "And now?",
    ]  # fmt: skip
    listed = await sdk.list_sessions_from_store(sessions, folder)
    assert [(info.session_id, info.summary) for info in listed] == [(SESSION, "The bag"), (older, "Another day")]
    assert [info.session_id for info in await sdk.list_sessions_from_store(sessions, folder, limit=1, offset=1)] == [
        older
    ]
    info = await sdk.get_session_info_from_store(sessions, SESSION, folder)
    assert info is not None
    assert (info.custom_title, info.first_prompt) == ("The bag", "Where is my bag?")


async def test_of_a_transcript_that_was_cut_the_sdk_reads_what_is_left(opened: Opener, tmp_path: Path) -> None:
    sessions = opened(max_messages=2)
    await sessions.append(key(tmp_path), CONVERSATION)
    messages = await sdk.get_session_messages_from_store(sessions, SESSION, str(tmp_path))
    assert texts(messages) == ["And now?", "In Rome."]
    fork = await sdk.fork_session_via_store(sessions, SESSION, str(tmp_path))
    copied = await sdk.get_session_messages_from_store(sessions, fork.session_id, str(tmp_path))
    assert texts(copied) == ["And now?", "In Rome."]


async def test_subagents_are_found_below_their_transcript(sessions: ChatkeepSessionStore, tmp_path: Path) -> None:
    await sessions.append(key(tmp_path), CONVERSATION)
    await sessions.append(key(tmp_path, subpath="subagents/agent-a1"), [{"type": "agent_metadata"}, *AGENT])
    await sessions.append(key(tmp_path, subpath="subagents/workflows/run/agent-b2"), AGENT)
    assert sorted(await sdk.list_subagents_from_store(sessions, SESSION, str(tmp_path))) == ["a1", "b2"]
    for agent in ("a1", "b2"):
        messages = await sdk.get_subagent_messages_from_store(sessions, SESSION, agent, str(tmp_path))
        assert texts(messages) == ["Look for the bag", "Found."]


async def test_renaming_tagging_forking_and_deleting_are_written(opened: Opener, tmp_path: Path) -> None:
    sessions, folder = opened(), str(tmp_path)
    await sessions.append(key(tmp_path), CONVERSATION)
    await sdk.rename_session_via_store(sessions, SESSION, "The bag", folder)
    await sdk.tag_session_via_store(sessions, SESSION, "urgent", folder)
    await sdk.tag_session_via_store(sessions, SESSION, None, folder)
    await sdk.tag_session_via_store(sessions, SESSION, "lost", folder)
    fork = await sdk.fork_session_via_store(sessions, SESSION, folder, up_to_message_id=uuid_of("In Oslo."))
    reader = opened()
    found = {info.session_id: info for info in await sdk.list_sessions_from_store(reader, folder)}
    assert (found[SESSION].custom_title, found[SESSION].tag) == ("The bag", "lost")
    assert found[fork.session_id].summary == "The bag (fork)"
    assert texts(await sdk.get_session_messages_from_store(reader, fork.session_id, folder)) == [
        "Where is my bag?", "In Oslo.",
    ]  # fmt: skip
    await sdk.delete_session_via_store(sessions, SESSION, folder)
    assert [info.session_id for info in await sdk.list_sessions_from_store(reader, folder)] == [fork.session_id]
    assert await sdk.get_session_messages_from_store(reader, SESSION, folder) == []


async def test_what_the_sdk_lists_from_summaries_is_what_it_reads_from_transcripts(
    sessions: ChatkeepSessionStore, tmp_path: Path
) -> None:
    for number in range(3):
        session_id = str(uuid.UUID(int=number))
        await sessions.append(key(tmp_path, session_id), chained(said(f"Question {number}"), session_id=session_id))
    side = str(uuid.UUID(int=9))
    await sessions.append(key(tmp_path, side), AGENT)
    listed = await sdk.list_sessions_from_store(sessions, str(tmp_path))
    alone = {
        info.session_id: await sdk.get_session_info_from_store(sessions, info.session_id, str(tmp_path))
        for info in listed
    }
    assert [info.summary for info in listed] == ["Question 2", "Question 1", "Question 0"]
    for info in listed:
        described = alone[info.session_id]
        assert described is not None
        assert (described.summary, described.created_at, described.cwd) == (info.summary, info.created_at, info.cwd)


async def test_files_are_imported_once_however_often(
    sessions: ChatkeepSessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "config" / "projects" / sdk.project_key_for_directory(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    (project / SESSION / "subagents").mkdir(parents=True)
    for path, entries in ((f"{SESSION}.jsonl", CONVERSATION), (f"{SESSION}/subagents/agent-a1.jsonl", AGENT)):
        (project / path).write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    names: dict[str, Any] = {"import_session_to_store": sdk.import_session_to_store}
    exec(documented("claude_import.py"), names)
    await sdk.import_session_to_store(SESSION, sessions, directory=str(tmp_path), batch_size=3)
    for _ in range(2):
        await names["move"]([SESSION], sessions, str(tmp_path))
    assert await sessions.load(key(tmp_path)) == CONVERSATION
    assert await sessions.load(key(tmp_path, subpath="subagents/agent-a1")) == AGENT


async def test_an_append_that_the_sdk_gives_up_is_whole_or_not_there(url: str) -> None:
    async with ChatkeepSessionStore(url) as sessions:
        batches = [[said(f"{number}.{place}") for place in range(5)] for number in range(10)]
        for number, batch in enumerate(batches):
            with suppress(TimeoutError):
                await asyncio.wait_for(sessions.append({"project_key": "p", "session_id": "s"}, batch), 0.0004 * number)
            await sessions.append({"project_key": "p", "session_id": "s"}, batch)
        loaded: Any = await sessions.load({"project_key": "p", "session_id": "s"})
        assert loaded == [entry for batch in batches for entry in batch]
