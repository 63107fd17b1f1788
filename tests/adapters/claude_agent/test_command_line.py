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
from tests.adapters.claude_agent.documents import documented
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
    """The address of a model that answers "Oslo.", "Rome." and "Paris.", and what it is shown each time."""
    asked: list[list[Any]] = []
    answering = type("Answering", (Model,), {"script": ["Oslo.", "Rome.", "Paris."], "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments: str, folder: Path, model: str) -> str:
    """What a process of its own says, which has a home of its own: nothing of this machine's user gets to it."""
    home = folder.parent / f"home-{len(list(folder.parent.iterdir()))}"
    home.mkdir()
    known = {name: value for name, value in os.environ.items() if not name.startswith(("CLAUDE", "ANTHROPIC"))}
    quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY")
    own = {"HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / ".claude"), "ANTHROPIC_BASE_URL": model}
    environment = {**known, **own, **dict.fromkeys(quiet, "1"), "ANTHROPIC_API_KEY": "none"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not BUNDLED.exists(), reason="this claude-agent-sdk has no command line in it: install its wheel")
async def test_a_transcript_that_the_documents_program_has_begun_is_gone_on_with_by_another_process(
    model: tuple[str, list[list[Any]]], tmp_path: Path
) -> None:
    pytest.importorskip("chatkeep_sqlite", reason="two processes have this store: pip install ./plugins/sqlite")
    address, asked = model
    url, folder = f"sqlite:///{tmp_path}/work/chat.db", tmp_path / "work"
    folder.mkdir()
    assert run("-c", documented("claude_agent.py"), folder=folder, model=address) == "Oslo.\n"
    async with ChatkeepSessionStore(url, tenant="acme", user="alice") as sessions:
        (info,) = await sdk.list_sessions_from_store(sessions, str(folder))
        assert info.first_prompt == "Where is my bag?"
        said = run(str(PROGRAM), url, info.session_id, "And now?", "And then?", folder=folder, model=address)
        assert json.loads(said) == [[info.session_id, "Rome.", False], [info.session_id, "Paris.", False]]
        assert "Where is my bag?" in str(asked[1])
        assert "Oslo." in str(asked[1])
        messages = await sdk.get_session_messages_from_store(sessions, info.session_id, str(folder))
        assert texts(messages) == ["Where is my bag?", "Oslo.", "And now?", "Rome.", "And then?", "Paris."]
        key: Any = {"project_key": sdk.project_key_for_directory(folder), "session_id": info.session_id}
        (summary,) = await sessions.list_session_summaries(key["project_key"])
        loaded = await sessions.load(key)
        assert loaded is not None
        assert summary["data"] == sdk.fold_session_summary(None, key, loaded)["data"]
        uuids = [entry["uuid"] for entry in loaded if "uuid" in entry]
        assert len(uuids) == len(set(uuids))
