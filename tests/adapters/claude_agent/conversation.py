"""A process that goes on with a transcript, for test_command_line.py: ``conversation.py <url> <prompt> <id>``."""

from __future__ import annotations

import asyncio
import json
import sys

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

from chatkeep_adapters.claude_agent import ChatkeepSessionStore


async def main(url: str, prompt: str, resume: str) -> None:
    async with (
        ChatkeepSessionStore(url, tenant="acme", user="alice") as sessions,
        ClaudeSDKClient(ClaudeAgentOptions(session_store=sessions, resume=resume)) as client,
    ):
        await client.query(prompt)
        messages = [message async for message in client.receive_response()]
    result = messages[-1]
    kinds = sorted({type(message).__name__ for message in messages})
    json.dump([result.session_id, result.result, "MirrorErrorMessage" in kinds], sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
