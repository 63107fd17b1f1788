"""The SDK's real runner on a scripted model: what its runs leave in the session."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from typing import Any

import openai
import pytest
from agents import Agent, RunConfig, Runner, function_tool, handoff
from agents.items import TResponseInputItem
from agents.memory import SessionSettings
from agents.run_internal import session_persistence
from tests.adapters.openai_agents.models import Opener, ScriptedModel, call, few_backends, kinds, user

from chatkeep import Window
from chatkeep_adapters.openai_agents import ChatkeepSession


@function_tool
async def where(bag: str) -> str:
    """Where the bag is."""
    return f"{bag} is in Oslo"


class LockedError(openai.BadRequestError):
    """What the SDK takes back the turn for, and tries again."""

    code = "conversation_locked"

    def __init__(self) -> None:
        Exception.__init__(self, "the conversation is locked")


async def test_a_conversation_goes_on_in_another_session_object_on_the_same_store(opened: Opener) -> None:
    model = ScriptedModel([call("where", "c1", '{"bag": "A"}'), call("where", "c2", '{"bag": "B"}')], "both in Oslo")
    agent = Agent(name="bags", model=model, tools=[where])
    result = await Runner.run(agent, "Where are my bags?", session=opened())
    assert result.final_output == "both in Oslo"
    expected = ["user", "function_call", "function_call", "function_call_output", "function_call_output", "assistant"]
    stored = await opened().get_items()
    assert kinds(stored) == expected
    assert [item["output"] for item in stored[3:5]] == ["A is in Oslo", "B is in Oslo"]  # type: ignore[typeddict-item]
    await Runner.run(agent, "And now?", session=opened())
    assert kinds(model.asked[-1]) == [*expected, "user"], "the model is shown the history"
    assert kinds(await opened().get_items()) == [*expected, "user", "assistant"]
    assert await opened().session().verify() == []


@few_backends
async def test_a_handoff_is_kept_with_both_agents_items(session: ChatkeepSession) -> None:
    second = Agent(name="tracing", model=ScriptedModel("in Oslo", "still there"))
    name = handoff(second).tool_name
    first = Agent(name="desk", model=ScriptedModel([call(name, "h1")]), handoffs=[second])
    result = await Runner.run(first, "Where is it?", session=session)
    assert result.last_agent is second
    assert kinds(await session.get_items()) == ["user", "function_call", "function_call_output", "assistant"]
    await Runner.run(second, "And now?", session=session)
    assert kinds(await session.get_items())[4:] == ["user", "assistant"]


@few_backends
async def test_a_streamed_run_leaves_what_a_plain_one_does(opened: Opener) -> None:
    def agent() -> Agent[Any]:
        return Agent(name="bags", model=ScriptedModel([call("where", "c", '{"bag": "A"}')], "in Oslo"), tools=[where])

    plain, streamed = opened(session_id="plain"), opened(session_id="streamed")
    await Runner.run(agent(), "Where?", session=plain)
    result = Runner.run_streamed(agent(), "Where?", session=streamed)
    async for _ in result.stream_events():
        pass
    assert result.final_output == "in Oslo"
    assert await streamed.get_items() == await plain.get_items()


@few_backends
@pytest.mark.parametrize("steps", range(0, 60, 12))
async def test_a_stream_that_is_left_and_cancelled_leaves_whole_batches(opened: Opener, steps: int) -> None:
    session = opened()
    model = ScriptedModel([call("where", f"c{number}", '{"bag": "A"}') for number in range(10)], "done")
    result = Runner.run_streamed(Agent(name="bags", model=model, tools=[where]), "Where?", session=session)

    async def read() -> None:
        async for _ in result.stream_events():
            pass

    reading = asyncio.ensure_future(read())
    for _ in range(steps):
        await asyncio.sleep(0)
    result.cancel()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    if result.run_loop_task is not None:
        await asyncio.gather(result.run_loop_task, return_exceptions=True)
    found = kinds(await opened().get_items())
    assert found.count("user") <= 1
    assert (found.count("function_call"), found.count("function_call_output")) in {(0, 0), (10, 0), (10, 10)}


@few_backends
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_a_model_that_fails_and_is_tried_again_leaves_the_users_turn_once(
    session: ChatkeepSession, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    async def at_once(delay: float) -> None:
        await asyncio.sleep(0)

    if importlib.util.find_spec("agents.run_internal.model_retry"):  # older ones wait for a second
        monkeypatch.setattr("agents.run_internal.model_retry._sleep_for_retry", at_once)
    model = ScriptedModel("fine", LockedError(), "in Oslo")
    agent = Agent(name="bags", model=model)
    await Runner.run(agent, "Hello", session=session)
    if streamed:
        result = Runner.run_streamed(agent, "Where?", session=session)
        async for _ in result.stream_events():
            pass
    else:
        await Runner.run(agent, "Where?", session=session)
    assert len(model.asked) == 3
    assert kinds(await session.get_items()) == ["user", "assistant"] * 2


@few_backends
async def test_what_the_sdk_rewinds_is_known_again_by_its_fingerprint(session: ChatkeepSession) -> None:
    before: list[Any] = [user("hello"), {"type": "reasoning", "id": "rs", "summary": [], "content": None}]
    turn: list[Any] = [
        user("where? 🧳"),
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A\ud83e"}]},
    ]
    await session.add_items([*before, *turn])
    await session_persistence.rewind_session_items(session, turn)
    assert await session.get_items() == before
    await session.add_items(turn)
    await session_persistence.rewind_session_items(session, [user("never said")])
    assert await session.get_items() == before + turn, "what is not the tail stays"


@few_backends
async def test_a_limit_of_the_run_and_a_window_are_what_the_model_is_shown(session: ChatkeepSession) -> None:
    await session.add_items([user("a"), user("b"), user("c")])
    model = ScriptedModel()
    agent = Agent(name="bags", model=model)
    await Runner.run(agent, "d", session=session, run_config=RunConfig(session_settings=SessionSettings(limit=1)))
    assert [item["content"] for item in model.asked[-1]] == ["c", "d"]
    session.window = Window(max_messages=3)
    await Runner.run(agent, "e", session=session)
    assert kinds(model.asked[-1]) == ["user", "user", "assistant", "user"]


@few_backends
async def test_a_history_that_another_program_wrote_is_shown_to_the_model_as_it_is(session: ChatkeepSession) -> None:
    newer: TResponseInputItem = {"type": "of_2031", "body": {"deep": [1, 2.5]}}  # type: ignore[typeddict-item]
    await session.add_items([user("a"), newer])
    model = ScriptedModel()
    await Runner.run(Agent(name="bags", model=model), "b", session=session)
    assert json.dumps(newer) in map(json.dumps, model.asked[-1])
    assert (await session.get_items())[1] == newer
