"""The real command line, with a scripted model: a transcript that one process has mirrored is resumed by another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
from tests.adapters.claude_agent.test_sdk import texts

from chatkeep_adapters.claude_agent import ChatkeepSessionStore

BUNDLED = Path(sdk.__file__).parent / "_bundled" / "claude"
PROGRAM = Path(__file__).with_name("conversation.py")


class Model(BaseHTTPRequestHandler):
    """Streams one word of its script after the other; `asked` is what it was shown."""

    script: list[str]
    asked: list[list[Any]]

    def do_POST(self) -> None:
        shown = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(shown["messages"])
        text = self.script.pop(0)
        usage = {"input_tokens": 1, "output_tokens": 1}
        about = {"type": "message", "role": "assistant", "model": "scripted", "content": [], "usage": usage}
        delta = {"type": "text_delta", "text": text}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {"id": f"msg_{text}", **about, "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ]
        sent = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@pytest.fixture
def model() -> Iterator[tuple[str, list[list[Any]]]]:
    """The address of a model that answers "Oslo." and then "Rome.", and what it is shown each time."""
    asked: list[list[Any]] = []
    answering = type("Answering", (Model,), {"script": ["Oslo.", "Rome."], "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments: str) -> Any:
    """What a process of its own says that has one turn. Nothing that configures the command line here gets to it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CLAUDE", "ANTHROPIC"))}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not BUNDLED.exists(), reason="this claude-agent-sdk has no command line in it: install its wheel")
async def test_a_transcript_that_one_process_has_mirrored_is_resumed_by_another(
    model: tuple[str, list[list[Any]]], tmp_path: Path
) -> None:
    pytest.importorskip("chatkeep_sqlite", reason="two processes have this store: pip install ./plugins/sqlite")
    address, asked = model
    url, folder = f"sqlite:///{tmp_path}/chat.db", tmp_path / "work"
    folder.mkdir()
    first = run(url, str(folder), address, "Where is my bag?")
    assert (first["answer"], first["trouble"]) == ("Oslo.", [])
    second = run(url, str(folder), address, "And now?", first["session_id"])
    assert second == {"session_id": first["session_id"], "answer": "Rome.", "trouble": []}
    assert "Where is my bag?" in str(asked[1])
    assert "Oslo." in str(asked[1])
    async with ChatkeepSessionStore(url, tenant="acme") as sessions:
        (info,) = await sdk.list_sessions_from_store(sessions, str(folder))
        assert (info.session_id, info.first_prompt) == (first["session_id"], "Where is my bag?")
        messages = await sdk.get_session_messages_from_store(sessions, info.session_id, str(folder))
        assert texts(messages) == ["Where is my bag?", "Oslo.", "And now?", "Rome."]
        key: Any = {"project_key": sdk.project_key_for_directory(folder), "session_id": info.session_id}
        (summary,) = await sessions.list_session_summaries(key["project_key"])
        loaded = await sessions.load(key)
        assert loaded is not None
        assert summary["data"] == sdk.fold_session_summary(None, key, loaded)["data"]
        uuids = [entry["uuid"] for entry in loaded if "uuid" in entry]
        assert len(uuids) == len(set(uuids))
