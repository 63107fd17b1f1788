"""What the worker relies on in aiosqlite and is not public there: the connection's thread and the queue before it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiosqlite
import pytest
import pytest_asyncio

from chatkeep_sqlite.worker import Worker


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "chat.db"
    path.touch()
    return str(path)


@pytest_asyncio.fixture
async def worker(path: str) -> AsyncIterator[Worker]:
    worker = Worker(path)
    await worker.start()
    yield worker
    if worker.alive:
        await worker.stop()


def test_the_plugin_is_held_to_one_minor_version_of_aiosqlite() -> None:
    major, minor, *_ = importlib.metadata.version("aiosqlite").split(".")
    (line,) = [each for each in importlib.metadata.requires("chatkeep-sqlite") or () if each.startswith("aiosqlite")]
    assert f"<{major}.{int(minor) + 1}" in line
    assert f">={major}.{minor}" in line


async def test_a_connection_has_a_thread_that_is_not_started_yet_and_a_queue_of_futures_and_functions() -> None:
    connection = aiosqlite.connect(":memory:")
    assert isinstance(connection._thread, threading.Thread)
    assert not connection._thread.is_alive()
    assert isinstance(connection._tx, queue.SimpleQueue)
    assert connection._connection is None
    await connection
    ran = threading.Event()
    connection._tx.put_nowait((None, ran.set))
    await connection.execute("SELECT 1")
    assert ran.is_set(), "an entry without a future was not run"
    assert isinstance(connection._conn, sqlite3.Connection)
    again = connection._connector()
    assert isinstance(again, sqlite3.Connection)
    again.close()
    await connection.close()
    assert connection._connection is None


async def test_the_thread_keeps_no_process_from_ending(worker: Worker) -> None:
    assert worker._connection._thread.daemon


async def test_a_call_runs_on_the_connections_thread_and_answers_on_the_event_loop(worker: Worker) -> None:
    here = threading.current_thread()

    def look(connection: sqlite3.Connection) -> tuple[object, object]:
        return threading.current_thread(), connection.execute("SELECT 41 + 1").fetchone()

    thread, answer = await worker.call(look)
    assert (thread, answer) == (worker._connection._thread, (42,))
    answered: asyncio.Future[threading.Thread] = asyncio.get_running_loop().create_future()
    worker.submit(lambda connection: None, lambda result, error: answered.set_result(threading.current_thread()))
    assert await answered is here


async def test_calls_run_one_after_the_other_in_the_order_in_which_they_were_made(worker: Worker) -> None:
    ran: list[int] = []
    await asyncio.gather(*(worker.call(lambda connection, number=number: ran.append(number)) for number in range(200)))
    assert ran == list(range(200))


@pytest.mark.parametrize("kind", [ValueError, sqlite3.OperationalError, SystemExit, asyncio.CancelledError])
async def test_whatever_a_function_raises_reaches_its_caller_and_the_thread_goes_on(
    worker: Worker, kind: type[BaseException]
) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        raise kind("on the thread")

    answered: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    worker.submit(fail, lambda result, error: answered.set_result(error))
    assert type(await answered) is kind
    assert await worker.call(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)


async def test_a_call_that_nobody_awaits_any_more_disturbs_nothing(worker: Worker) -> None:
    go_on = threading.Event()
    call = worker.call(lambda connection: go_on.wait())
    await asyncio.sleep(0.01)
    call.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await worker.call(lambda connection: 7) == 7


def test_an_answer_for_an_event_loop_that_is_closed_is_dropped_and_the_next_loop_is_served(path: str) -> None:
    worker = Worker(path)
    go_on = threading.Event()

    async def leave() -> None:
        await worker.start()
        worker.submit(lambda connection: go_on.wait(), lambda result, error: pytest.fail("nobody is here"))

    async def use() -> object:
        answer = await worker.call(lambda connection: connection.execute("SELECT 1").fetchone())
        await worker.stop()
        return answer

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(use()) == (1,)


async def test_stopping_ends_the_thread_after_what_was_asked_before(worker: Worker) -> None:
    thread = worker._connection._thread
    asked = worker.call(lambda connection: connection.execute("SELECT 1").fetchone())
    assert worker.alive
    await worker.stop()
    assert await asked == (1,)
    assert not worker.alive
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


def test_a_thread_that_ends_after_its_event_loop_ends_quietly(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself aiosqlite answers the loop once more, and its thread dies of it where the loop is closed."""
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    worker = Worker(path)

    async def leave() -> None:
        await worker.start()
        go_on = threading.Event()
        worker.submit(lambda connection: go_on.wait(), lambda result, error: None)
        worker.stop()
        asyncio.get_running_loop().call_soon(go_on.set)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    worker._connection._thread.join(10)
    assert not worker._connection._thread.is_alive()
    assert died == []


async def test_a_start_that_is_cancelled_closes_what_was_opened(path: str) -> None:
    worker = Worker(path)
    start = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await asyncio.to_thread(worker._connection._thread.join, 10)
    assert not worker._connection._thread.is_alive()
    assert worker._connection._connection is None


async def test_a_file_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path))
    with pytest.raises(sqlite3.OperationalError):
        await worker.start()
    await asyncio.to_thread(worker._connection._thread.join, 10)
    assert not worker._connection._thread.is_alive()
    assert not worker.alive
