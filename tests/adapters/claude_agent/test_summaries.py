"""The summary of a transcript is what its stored entries fold to, whoever appends at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from claude_agent_sdk import fold_session_summary
from tests.adapters.claude_agent.transcripts import KEY, PROJECT, SESSION, Opener, said, title

from chatkeep import Log
from chatkeep_adapters import claude_agent
from chatkeep_adapters.claude_agent import SUMMARY, ChatkeepSessionStore


async def folded(sessions: ChatkeepSessionStore) -> dict[str, Any]:
    """What all that is stored folds to."""
    return fold_session_summary(None, KEY, await sessions.load(KEY) or [])["data"]


async def listed(sessions: ChatkeepSessionStore) -> dict[str, Any]:
    (summary,) = await sessions.list_session_summaries(PROJECT)
    assert summary["session_id"] == SESSION
    return summary["data"]


async def is_current(sessions: ChatkeepSessionStore) -> bool:
    """Whether the summary is kept that belongs to what is stored now."""
    info = await sessions.session(**KEY).info()
    assert info is not None
    kept = info.metadata[SUMMARY]
    return (kept["seq"], kept["rewrite"]) == (info.tail.seq, info.tail.rewrite)


def entries(writer: int, number: int) -> list[Any]:
    """A batch that changes the summary in every way: what is first counts for some of it, for the rest what is last."""
    at = f"2026-01-01T00:00:{writer:02}.{number:03}Z"
    return [
        said(f"{writer} asks {number}", timestamp=at, cwd=f"/{writer}/{number}", gitBranch=f"b{writer}.{number}"),
        title(f"title {writer}.{number}"),
        {"type": "tag", "tag": f"tag {writer}.{number}" if number % 2 else "", "uuid": f"{writer}.{number}"},
    ]


@pytest.mark.parametrize("attempts", [1000, 1, 0])
async def test_the_summary_is_the_fold_of_what_is_stored_while_many_append(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    monkeypatch.setattr(claude_agent, "ATTEMPTS", attempts)
    stores = [opened() for _ in range(3)]

    async def write(writer: int) -> None:
        for number in range(4):
            await stores[writer].append(KEY, entries(writer, number))
            await stores[writer - 1].append(KEY, entries(writer, number)[::2])  # what has a uuid is there already

    await asyncio.gather(*map(write, range(3)))
    assert len(await stores[0].load(KEY) or []) == 36
    assert await listed(stores[0]) == await folded(stores[0])
    if attempts == 1000:
        assert await is_current(stores[0])
    monkeypatch.undo()
    await stores[1].append(KEY, [title("the last")])
    assert await is_current(stores[0])
    assert await listed(stores[0]) == await folded(stores[0])


async def test_what_is_sent_again_changes_no_summary(sessions: ChatkeepSessionStore) -> None:
    first, second, third = (title(name, uuid=name) for name in "abc")
    await sessions.append(KEY, [first])
    await sessions.append(KEY, [second])
    await sessions.append(KEY, [first])
    assert (await listed(sessions))["custom_title"] == "b"
    await sessions.append(KEY, [third, second, first])
    assert (await listed(sessions))["custom_title"] == "c"
    assert await is_current(sessions)


async def test_a_listing_reads_no_transcript_whose_summary_is_current(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = opened()
    await sessions.append(KEY, [said("Where is my bag?")])
    await opened().append(KEY, [title("The bag")])
    await sessions.append({**KEY, "subpath": "subagents/agent-1"}, [title("sub")])
    wanted = await folded(sessions)

    async def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("a transcript was read")

    monkeypatch.setattr(Log, "messages", read)
    assert await listed(sessions) == wanted
    await sessions.append(KEY, [said("And now?")])  # nor does an append


async def test_a_summary_follows_what_is_edited(sessions: ChatkeepSessionStore) -> None:
    await sessions.append(KEY, [said("secret"), title("first"), title("second")])
    session = sessions.session(**KEY)
    await session.redact(1)
    assert (await listed(sessions)) == await folded(sessions)
    assert (await listed(sessions))["first_prompt"] == "[redacted]"
    await session.truncate_after(2)
    assert (await listed(sessions))["custom_title"] == "first"
    await sessions.append(KEY, [said("on")])
    assert await listed(sessions) == await folded(sessions)
    await session.clear()
    assert await sessions.list_sessions(PROJECT) == await sessions.list_session_summaries(PROJECT) == []
    await sessions.append(KEY, [title("anew")])
    assert await listed(sessions) == await folded(sessions)


async def test_a_fork_of_the_session_is_no_transcript(sessions: ChatkeepSessionStore) -> None:
    await sessions.append(KEY, [said("one")])
    await sessions.session(**KEY).fork("aside")
    assert [each["session_id"] for each in await sessions.list_sessions(PROJECT)] == [SESSION]


async def test_a_session_that_others_have_begun_is_gone_on_with(sessions: ChatkeepSessionStore) -> None:
    session = sessions.session(**KEY)
    await session.append([said("by hand")])
    await session.update(metadata={"claude_project": PROJECT})
    assert await sessions.list_sessions(PROJECT) == []
    await sessions.append(KEY, [title("on")])
    assert await sessions.load(KEY) == [said("by hand"), title("on")]
    assert await listed(sessions) == await folded(sessions)
    assert (await listed(sessions))["first_prompt"] == "by hand"


async def test_a_summary_that_is_too_long_is_made_at_each_listing(sessions: ChatkeepSessionStore) -> None:
    await sessions.append(KEY, [title("long " * 5_000)])
    await sessions.append(KEY, [said("on")])
    assert await listed(sessions) == await folded(sessions)
    info = await sessions.session(**KEY).info()
    assert info is not None
    assert len(str(info.metadata)) < 1_000


async def test_entries_that_the_sdk_cannot_fold_are_stored_all_the_same(
    sessions: ChatkeepSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(before: Any, key: Any, entries: list[Any]) -> Any:
        if any(entry["type"] == "of-tomorrow" for entry in entries):
            raise AttributeError("no such thing")
        return fold_session_summary(before, key, entries)

    monkeypatch.setattr(claude_agent, "fold_session_summary", failing)
    await sessions.append(KEY, [said("one")])
    await sessions.append(KEY, [{"type": "of-tomorrow"}])
    await sessions.append(KEY, [said("two")])
    assert await sessions.load(KEY) == [said("one"), {"type": "of-tomorrow"}, said("two")]
    assert [each["session_id"] for each in await sessions.list_sessions(PROJECT)] == [SESSION]
    assert await sessions.list_session_summaries(PROJECT) == []
    monkeypatch.undo()
    assert await listed(sessions) == await folded(sessions)
