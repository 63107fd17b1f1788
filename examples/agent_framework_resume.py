"""An agent of the Microsoft Agent Framework goes on with a conversation that another process has had.

    python examples/agent_framework_resume.py

Three processes, one after the other: Alice asks, which makes the agent use its tool; Alice goes on by the session's id,
and the model is shown all that was said; Bob tries the same id and finds nothing.

The model is a few lines of this file. With OPENAI_API_KEY and OPENAI_MODEL set (and ``pip install
agent-framework-openai``) it is a real one. The conversation is kept where CHATKEEP_URL says, else in a SQLite file that
is removed at the end.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Annotated, Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
)

from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

SESSION = "trip-42"
STEPS = [
    ("alice", "new", "How is the weather in Oslo?"),
    ("alice", "resume", "And what did I ask you first?"),
    ("bob", "resume", "What did Alice ask you?"),
]


class OfflineClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A model of three answers."""

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, options: Any, **kwargs: Any) -> Any:
        print(f"  the model is shown {len(messages)} messages: {', '.join(message.role for message in messages)}")
        return self._answer(messages)

    async def _answer(self, messages: Sequence[Message]) -> ChatResponse:
        last = messages[-1]
        answer: str | Content
        if last.role == "tool":
            answer = f"It is {last.contents[0].result}."
        elif "weather" in last.text:
            answer = Content.from_function_call("call-1", "weather", arguments={"city": "Oslo"})
        else:
            answer = f"You asked: {messages[0].text}"
        return ChatResponse(messages=[Message("assistant", [answer])])


def chat_client() -> Any:
    """A real model where there is a key for one."""
    if not os.environ.get("OPENAI_API_KEY"):
        return OfflineClient()
    from agent_framework.openai import OpenAIChatClient  # noqa: PLC0415 - a package of its own

    return OpenAIChatClient()


def weather(city: Annotated[str, "The city's name."]) -> str:
    """How the weather is in a city."""
    return f"sunny in {city}"


async def talk(user: str, how: str, question: str) -> None:
    """What one process does for the user who has signed in, whose name no request can choose."""
    print(f"Process {os.getpid()}, {user}: {question}")
    async with ChatkeepHistoryProvider(os.environ["CHATKEEP_URL"], tenant="acme", user=user) as history:
        if how == "resume" and not await history.session(SESSION).exists():
            print(f"  session {SESSION}: not found")
            return
        agent = Agent(chat_client(), instructions="Be short.", tools=[weather], context_providers=[history])
        response = await agent.run(question, session=AgentSession(session_id=SESSION))
        print(f"  {response.text}")


def main() -> None:
    """Run each step in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"CHATKEEP_URL": f"sqlite:///{folder}/chat.db", **os.environ}
        for step in STEPS:
            subprocess.run([sys.executable, __file__, *step], env=environment, check=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(talk(*sys.argv[1:]))
    else:
        main()
