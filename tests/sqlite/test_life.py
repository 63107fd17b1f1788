"""What a store's life leaves behind: cancelled or locked out, its threads end; forked, its file is left alone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from chatkeep import ChatMessage, Store, StoreUnavailableError, open_store
from chatkeep.errors import StoreClosedError
from chatkeep_sqlite import forks as fork_hooks
from chatkeep_sqlite.backend import SQLiteBackend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


def store_on(path: Path, **options: Any) -> Store[ChatMessage]:
    return open_store(f"sqlite:///{path}", **options)


def say(*said: str) -> list[ChatMessage]:
    return [ChatMessage.user(text) for text in said]


@contextmanager
def no_threads_left() -> Iterator[None]:
    """Behind the block there are no more threads than before it; they may take a moment to end."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 20
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, f"{len(left)} threads are left"
        time.sleep(0.005)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The file, locked against writers by another connection."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.close()


# Cancelled


def test_fifty_openings_and_closings_that_are_cancelled_leave_no_thread(path: Path) -> None:
    async def open_and_close(number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(number * 0.0001), store_on(path) as store:
                await store.session("s").append(say("a"))

    async def close_later(number: int) -> None:
        store = store_on(path)
        await store.session("s").append(say("a"))
        with suppress(TimeoutError):
            async with asyncio.timeout(number * 0.00002):
                await store.close()

    async def use() -> None:
        for number in range(50):
            await open_and_close(number)
            await close_later(number)

    with no_threads_left():
        asyncio.run(use())


@pytest.mark.parametrize("how", ["open", "close"])
def test_an_event_loop_that_ends_in_between_leaves_no_thread(path: Path, how: str) -> None:
    stores: list[Store[ChatMessage]] = []

    async def leave(moment: float) -> None:
        stores.append(store_on(path))
        if how == "close":
            await stores[-1].open()
        asyncio.create_task(stores[-1].open() if how == "open" else stores[-1].close())  # noqa: RUF006 - left behind
        await asyncio.sleep(moment)

    with no_threads_left():
        for moment in range(20):
            asyncio.run(leave(moment * 0.0002))
        for store in stores:
            asyncio.run(store.close())


class Slow:
    """A connection that takes its time to close, and notes who else is closing then."""

    def __init__(self, connection: sqlite3.Connection, closing: list[int]) -> None:
        self.connection = connection
        self.closing = closing

    def close(self) -> None:
        self.closing.append(self.closing[-1] + 1)
        time.sleep(0.05)
        self.connection.close()
        self.closing.append(self.closing[-1] - 1)


async def test_the_connections_of_a_store_close_one_after_the_other(path: Path) -> None:
    """Of two that close at the same instant neither empties and removes the write-ahead log."""
    store = store_on(path)
    await store.session("s").append(say("a"))
    assert isinstance(store.backend, SQLiteBackend)
    closing = [0]
    for worker in (store.backend._writer, store.backend._reader):
        assert worker is not None
        assert worker._connection._connection is not None
        worker._connection._connection = Slow(worker._connection._connection, closing)  # type: ignore[assignment]
    await store.close()
    assert closing == [0, 1, 0, 1, 0]


# Locked by another program


async def test_whoever_closes_a_second_time_waits_until_those_who_wait_are_told(path: Path) -> None:
    with no_threads_left():
        store = store_on(path, timeout=1)
        await store.session("s").append(say("a"))
        with locked(path):
            writes = [asyncio.create_task(store.session("s").append(say(str(number)))) for number in range(3)]
            await asyncio.sleep(0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await store.close()
            assert not any(write.done() for write in writes)
            await asyncio.wait_for(store.close(), 20)
            assert all(write.done() for write in writes)
        for answer in await asyncio.gather(*writes, return_exceptions=True):
            assert isinstance(answer, StoreUnavailableError | StoreClosedError)
    async with store_on(path) as again:
        assert await again.session("s").count() == 1


def test_an_event_loop_that_ends_while_a_close_waits_for_a_lock_leaves_no_thread(path: Path) -> None:
    store = store_on(path, timeout=2)

    async def leave() -> None:
        await store.session("s").append(say("a"))
        with locked(path):
            write = asyncio.create_task(store.session("s").append(say("b")))
            await asyncio.sleep(0.05)
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0.05)
            closing.cancel()
            assert not write.done()

    with no_threads_left():
        asyncio.run(leave())
        asyncio.run(store.close())


async def test_a_close_that_is_cut_short_refuses_those_who_wait(path: Path) -> None:
    store = store_on(path, timeout=2)
    await store.session("s").append(say("a"))
    with no_threads_left():
        with locked(path):
            first = asyncio.create_task(store.session("s").append(say("first")))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(store.session("s").append(say("second")))
            closing = asyncio.create_task(store.backend.close())
            await asyncio.sleep(0.1)
            closing.cancel()
            await asyncio.wait((first, second, closing), timeout=20)
        assert closing.cancelled()
        with pytest.raises(StoreUnavailableError, match="nothing was written"):
            await first
        with pytest.raises(StoreClosedError, match="nothing was written"):
            await second
    await store.close()


async def test_an_opening_that_waits_for_a_lock_can_be_cancelled_at_once(path: Path) -> None:
    with no_threads_left(), locked(path):
        opening = asyncio.create_task(store_on(path, connect_timeout=2).__aenter__())
        await asyncio.sleep(0.1)
        opening.cancel()
        done, _ = await asyncio.wait((opening,), timeout=1)
        assert done, "it waited for the lock"
        assert opening.cancelled()


# Forked

FORK = """
import asyncio, os, sys, traceback
from chatkeep import ChatMessage, open_store
from chatkeep.errors import StoreLoopError, StoreUnavailableError

url = "sqlite:///" + sys.argv[1]
other = "sqlite:///" + sys.argv[2]

async def append(store, *said):
    await store.session("s").append([ChatMessage.user(text) for text in said])

async def count(store):
    return await store.session("s").count()

async def once(url, *said):
    async with open_store(url) as store:
        await append(store, *said)

def refused(kind, call):
    try:
        asyncio.run(call)
    except kind as error:
        assert "fork" in str(error), error
    else:
        raise AssertionError("it was not refused")

def in_a_child(call):
    child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child has failed"
"""


def forked(script: str, path: Path) -> None:
    """Run a script that forks, in a process of its own."""
    arguments = [sys.executable, "-W", "ignore", "-c", FORK + script, str(path), str(path.with_name("other.db"))]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@forks
def test_a_store_is_refused_in_a_forked_child_and_nothing_acknowledged_is_lost(path: Path) -> None:
    forked(
        """
store = open_store(url)
asyncio.run(append(store, "before"))

def child():
    refused(StoreLoopError, append(store, "child"))
    refused(StoreLoopError, count(store))
    refused(StoreLoopError, store.close())

in_a_child(child)
asyncio.run(append(store, "after"))
asyncio.run(store.close())
assert asyncio.run(count(open_store(url))) == 2
""",
        path,
    )


@forks
def test_a_file_that_a_forked_child_has_inherited_open_is_refused_there_under_whatever_name(path: Path) -> None:
    forked(
        """
store = open_store(url)
asyncio.run(append(store, "before"))
link = sys.argv[1] + "-link"
os.symlink(sys.argv[1], link)
os.chdir(os.path.dirname(link))

def child():
    global store
    store = None
    for name in (url, "sqlite:///" + link, "sqlite:///" + os.path.basename(link)):
        for _ in range(2):
            refused(StoreUnavailableError, once(name, "child"))
    in_a_child(lambda: refused(StoreUnavailableError, once(url, "grandchild")))

in_a_child(child)
asyncio.run(append(store, "after"))
asyncio.run(store.close())
in_a_child(lambda: asyncio.run(once(url, "a child born after the close")))
assert asyncio.run(count(open_store(url))) == 3
""",
        path,
    )


@forks
def test_a_forked_child_uses_what_nothing_was_opened_for(path: Path) -> None:
    forked(
        """
async def fork_with(stores):
    def child():
        for store in stores:
            asyncio.run(append(store, "child"))
            assert asyncio.run(count(store)) == 1
            asyncio.run(store.close())
        asyncio.run(once(other, "child"))
    in_a_child(child)

async def use():
    memory, named, unused = open_store("memory://"), open_store("memory://name"), open_store(other + "2")
    await memory.open()
    await named.open()
    async with open_store(url) as store:
        await append(store, "parent")
        await fork_with([memory, named, unused])
        await append(unused, "parent")
        assert (await count(memory), await count(named), await count(unused)) == (0, 0, 2)
        await unused.close()

asyncio.run(use())
""",
        path,
    )


def test_a_signal_that_raises_in_the_middle_of_a_fork_leaves_no_lock_held() -> None:
    class Interrupted:
        """A lock that is taken, and then a signal handler raises."""

        def __init__(self) -> None:
            self.lock = threading.RLock()
            self._is_owned = self.lock._is_owned  # type: ignore[attr-defined]
            self.release = self.lock.release

        def acquire(self, *, timeout: float) -> None:
            self.lock.acquire(timeout=timeout)
            raise InterruptedError

    def free(lock: Any) -> bool:
        found: list[bool] = []
        other = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False) and lock.release() is None))
        other.start()
        other.join()
        return found == [True]

    interrupted = Interrupted()
    fork_hooks.keep_out_of_forks(interrupted)
    with pytest.raises(InterruptedError):
        fork_hooks._before_fork()
    assert not free(interrupted.lock)
    fork_hooks._after_fork_in_parent()
    assert free(interrupted.lock)
    assert free(fork_hooks._changing)
