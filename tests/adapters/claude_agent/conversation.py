"""A process that goes on with a transcript, for test_command_line.py: ``conversation.py <url> <id> <prompt> <prompt>``.

The first turn resumes it by its id; the second goes on with what was added to last.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

from chatkeep_adapters.claude_agent import ChatkeepSessionStore


async def answer(prompt: str, **options: Any) -> list[Any]:
    async with ClaudeSDKClient(ClaudeAgentOptions(**options)) as client:
        await client.query(prompt)
        messages: list[Any] = [message async for message in client.receive_response()]
    failed = any(type(message).__name__ == "MirrorErrorMessage" for message in messages)
    return [messages[-1].session_id, messages[-1].result, failed]


async def main(url: str, resume: str, first: str, second: str) -> None:
    async with ChatkeepSessionStore(url, tenant="acme", user="alice") as sessions:
        answers = [
            await answer(first, session_store=sessions, resume=resume),
            await answer(second, session_store=sessions, continue_conversation=True),
        ]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
