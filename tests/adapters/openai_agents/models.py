"""A model that says what it was told to, for the SDK's real runner: no network, and no service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from agents import Model, ModelResponse, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from chatkeep_adapters.openai_agents import ChatkeepSession

Opener = Callable[..., ChatkeepSession]
few_backends = pytest.mark.parametrize("url", ["memory", "sqlite", "redis"], indirect=True)
"""For what the other backends cannot do otherwise: their servers take a hundred times as long."""


def said(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id=f"msg_{text}", type="message", role="assistant", status="completed", content=[part])


def call(name: str, id: str, arguments: str = "{}") -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        id=f"fc_{id}", type="function_call", call_id=id, name=name, arguments=arguments, status="completed"
    )


class ScriptedModel(Model):
    """Gives one step of its script after the other: a text, a list of output items, or an error to raise.

    `asked` is what it was shown each time. After the script it says "ok".
    """

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[Any] = []

    def _step(self, input: Any) -> list[Any]:
        self.asked.append(input)
        step = self.script.pop(0) if self.script else "ok"
        if isinstance(step, Exception):
            raise step
        return [said(step)] if isinstance(step, str) else list(step)

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        await asyncio.sleep(0)
        return ModelResponse(output=self._step(input), usage=Usage(), response_id=f"resp_{len(self.asked)}")

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        output = self._step(input)
        await asyncio.sleep(0)
        response = Response(
            id=f"resp_{len(self.asked)}",
            created_at=time.time(),
            model="gpt-test",
            object="response",
            output=output,
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def answer(text: str, id: str | None = None) -> Any:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]} | ({} if id is None else {"id": id})


def called(id: str) -> Any:
    return {"type": "function_call", "call_id": id, "name": "where", "arguments": "{}"}


def returned(id: str, output: Any = "Oslo") -> Any:
    return {"type": "function_call_output", "call_id": id, "output": output}


def kinds(items: Any) -> list[str]:
    """For each item its role, or its type where it has none."""
    return [item.get("role") or item["type"] for item in items]
