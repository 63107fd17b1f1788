"""A process that has one turn with the command line, and keeps it in a store: for test_command_line.py.

``python conversation.py <url> <folder> <address of the model> <prompt> [session id to resume]``; it says JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, query

from chatkeep_adapters.claude_agent import ChatkeepSessionStore


async def answer(prompt: str, options: ClaudeAgentOptions) -> list[Any]:
    if options.resume is None:
        return [message async for message in query(prompt=prompt, options=options)]
    async with ClaudeSDKClient(options) as client:
        await client.query(prompt)
        return [message async for message in client.receive_response()]


async def main(url: str, folder: str, model: str, prompt: str, resume: str | None = None) -> None:
    home = tempfile.mkdtemp()  # nothing but the store comes from another process, and nothing from this machine's user
    quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY")
    env = {
        "HOME": home,
        "CLAUDE_CONFIG_DIR": f"{home}/.claude",
        "ANTHROPIC_BASE_URL": model,
        **dict.fromkeys(quiet, "1"),
    }
    env["ANTHROPIC_API_KEY"] = "none"
    os.environ |= env
    try:
        async with ChatkeepSessionStore(url, tenant="acme") as sessions:
            options = ClaudeAgentOptions(
                session_store=sessions, resume=resume, cwd=folder, env=env, model="scripted", setting_sources=[]
            )
            messages = await answer(prompt, options)
    finally:
        shutil.rmtree(home)
    result = messages[-1]
    trouble = [str(message) for message in messages if type(message).__name__ == "MirrorErrorMessage"]
    json.dump({"session_id": result.session_id, "answer": result.result, "trouble": trouble}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
