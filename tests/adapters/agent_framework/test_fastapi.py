"""The recipe for FastAPI, on two real workers: every history is whole, in order, and its user's alone."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

MISSING = "the recipe for FastAPI is not tested: pip install fastapi uvicorn httpx"
pytest.importorskip("fastapi", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)
httpx = pytest.importorskip("httpx", reason=MISSING)

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE = 30.0
"""Seconds after which something hangs that should have ended."""
USERS = ("alice", "bob", "carol", "dave")


class Server:
    """Uvicorn with two workers on a free port, in a process group of its own; what it says goes into a file."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/chat.db"
        self.log = folder / "log"
        command = [sys.executable, "-m", "uvicorn", "agent_framework_fastapi:app", "--app-dir", str(EXAMPLES)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", "0", "--workers", "2"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "CHATKEEP_URL": self.url},
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text()

    def address(self) -> str:
        """Where it listens, once both workers do."""
        wait_for(lambda: self.said().count("startup complete") == 2 or self.process.poll() is not None, self.said)
        (address,) = re.findall(r"running on (http://127\.0\.0\.1:\d+) ", self.said())
        return address

    def workers(self) -> set[str]:
        return set(re.findall(r"Started server process \[(\d+)\]", self.said()))

    def alive(self) -> bool:
        """Whether any process of the group is."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def end(self) -> int:
        """What an operator does; its exit status."""
        self.process.terminate()
        status = self.process.wait(PATIENCE)
        wait_for(lambda: not self.alive(), self.said)
        return status


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    try:
        yield server
    finally:
        if server.alive():
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


async def test_four_users_of_two_workers_find_whole_histories_in_order_and_their_own_alone(server: Server) -> None:
    address = await asyncio.to_thread(server.address)
    answering: set[str] = set()  # the processes that have answered
    # No connection is kept: each request goes to whichever worker takes it.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=PATIENCE) as client:

        async def ask(user: str, text: str, path: str = "/chat") -> str:
            answer = await client.post(path, json={"text": text}, headers={"x-user": user})
            assert answer.status_code == 200, (answer.text, server.said())
            answering.add(re.findall(r"says process (\d+)", answer.json()["text"])[0])
            return str(answer.json()["session_id"])

        async def talk(user: str) -> str:
            """Four questions, one after the other."""
            session_id = await ask(user, f"{user} 0")
            for number in range(1, 4):
                await ask(user, f"{user} {number}", f"/chat/{session_id}")
            return session_id

        sessions = dict(zip(USERS, await asyncio.gather(*map(talk, USERS)), strict=True))
        everywhere = f"/chat/{sessions['alice']}"
        await asyncio.gather(*(ask("alice", f"alice at once {number}", everywhere) for number in range(4)))
        for user in USERS[1:]:
            refused = await client.post(everywhere, json={"text": "What did she say?"}, headers={"x-user": user})
            assert (refused.status_code, refused.json()) == (404, {"detail": "no such conversation"})
        strange = await client.post(f"/chat/{'a' * 3000}", json={"text": "Who?"}, headers={"x-user": "alice"})
        assert strange.status_code == 422
        nobody = await client.post(everywhere, json={"text": "What did she say?"})
        assert nobody.status_code == 422
        deadline = time.monotonic() + PATIENCE
        while answering != server.workers():  # so that what is checked was kept by both
            assert time.monotonic() < deadline, f"{server.workers()} were started, and {answering} have answered"
            await asyncio.gather(*(ask("erin", "Anybody?") for _ in range(4)))

    for user, session_id in sessions.items():
        async with ChatkeepHistoryProvider(server.url, tenant="acme", user=user) as history:
            kept = await history.get_messages(session_id)
            assert [info.id for info in await history.list_sessions()] == [session_id]
            assert await history.log(session_id).verify() == []
        asked = [message.text for message in kept[::2]]
        at_once = [f"alice at once {number}" for number in range(4)] if user == "alice" else []
        assert asked[:4] == [f"{user} {number}" for number in range(4)]
        assert sorted(asked[4:]) == at_once
        assert [message.role for message in kept] == ["user", "assistant"] * len(asked)
        for place, (question, answer) in enumerate(zip(asked, kept[1::2], strict=True)):
            assert answer.text.startswith(f"{question!r} is message {2 * place + 1}, ")

    assert await asyncio.to_thread(server.end) in (0, -signal.SIGTERM)
    assert server.said().count("Finished server process") == 2
    assert re.findall("ERROR|Traceback", server.said()) == []
