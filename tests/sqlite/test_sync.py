"""`chatkeep.sync` on a file: shared by threads and processes, interrupted, forked, and left open at a process's end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chatkeep import ChatMessage
from chatkeep.sync import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chat.db"


def say(*said: str) -> list[ChatMessage]:
    return [ChatMessage.user(text) for text in said]


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


def run(script: str, url: str) -> None:
    """Run a script in a process of its own, which must end well and say nothing."""
    # A fork beside other threads is a DeprecationWarning from Python 3.12 on.
    command = [
        sys.executable,
        "-W",
        "error",
        "-W",
        "ignore:This process:DeprecationWarning",
        "-c",
        PRELUDE + script,
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


PRELUDE = """
import os, sys, threading, time, traceback
from chatkeep import ChatMessage, background
from chatkeep.errors import StoreUnavailableError
from chatkeep.sync import open_store

url = sys.argv[1]

def say(*said):
    return [ChatMessage.user(text) for text in said]

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

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_threads_share_a_file_and_what_one_store_writes_the_next_one_reads(url: str) -> None:
    with open_store(url, synchronous="NORMAL") as store:
        session = store.scoped(user="alice").session("s")

        def write(thread: int) -> None:
            for turn in range(10):
                session.append(say(f"{thread}.{turn}", f"{thread}.{turn}"))
                session.state.set(f"{thread}.{turn}", turn)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_store(url) as store:
        session = store.scoped(user="alice").session("s")
        read = texts(list(session.stream()))
        assert (len(read), read[::2], len(session.state.keys())) == (160, read[1::2], 80)
        with session.lease() as guarded:
            guarded.pop(160)
        assert [info.id for info in store.iter_sessions(below=True)] == ["s"]
        assert store.ping().backend == "sqlite"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="here a signal does not interrupt a thread that waits")
def test_a_signal_waits_for_a_write_that_waits_for_a_lock(url: str, tmp_path: Path) -> None:
    class TimeLimitError(Exception):
        pass

    def too_long(*_: object) -> None:
        raise TimeLimitError

    def interrupt_and_free() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        freed.wait(0.1)
        other.execute("COMMIT")

    freed = threading.Event()
    before = signal.signal(signal.SIGUSR1, too_long)
    other = sqlite3.connect(tmp_path / "chat.db", isolation_level=None, check_same_thread=False)
    try:
        with open_store(url) as store:
            session = store.session("s")
            session.append(say("a"))
            other.execute("BEGIN IMMEDIATE")
            timer = threading.Timer(0.1, interrupt_and_free)
            timer.start()
            with pytest.raises(TimeLimitError):
                session.append(say("b"))
            assert not other.in_transaction, "the write was not waited for"
            assert texts(session.messages()) == ["a", "b"]
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        other.close()


def test_what_a_script_wrote_that_closes_nothing_is_in_the_file_alone(url: str, tmp_path: Path) -> None:
    run(
        """
background.PATIENCE = 30
stores = [open_store(url), open_store(url), open_store(url + "2"), open_store("sqlite://"), open_store(url)]
for store in stores[:4]:
    store.session("s").append(say("a"))

def use():
    while True:
        stores[2].session("s").append(say("b"))

threading.Thread(target=use, daemon=True).start()
time.sleep(0.05)
""",
        url,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.db", "chat.db2"]
    with open_store(url) as store:
        assert texts(store.session("s").messages()) == ["a", "a"]


@forks
def test_a_forked_child_uses_files_that_the_parent_has_not_open_and_is_refused_the_others(url: str) -> None:
    run(
        """
store, fresh, memory = open_store(url), open_store(url + "2"), open_store("sqlite://")
session = store.session("s")
session.append(say("parent"))
memory.session("s").append(say("parent"))

def child():
    for call in (session.count, lambda: session.append(say("child")), open_store(url).open):
        try:
            call()
        except StoreUnavailableError as error:
            assert 'start processes with "spawn"' in str(error)
        else:
            raise AssertionError("it was not refused")
    store.close()
    fresh.session("s").append(say("child"))
    fresh.close()
    assert memory.session("s").append(say("child")).seqs == (1,)

in_a_child(child)
session.append(say("parent"))
assert (session.count(), fresh.session("s").count(), memory.session("s").count()) == (2, 1, 1)
fresh.close()
store.close()
in_a_child(lambda: open_store(url).session("s").append(say("child")))
assert open_store(url).session("s").count() == 3
""",
        url,
    )


@forks
def test_a_fork_waits_for_threads_inside_sqlite_and_not_for_ever(url: str) -> None:
    run(
        """
from chatkeep_sqlite import forks

def fork_while(work, child):
    thread = threading.Thread(target=ask, args=(work,))
    thread.start()
    inside.wait()
    in_a_child(child)
    go_on.set()
    thread.join()
    inside.clear()

def ask(work):
    async def call():
        await store._twin.backend._writer.call(work)
    store._origin.run(call)

def short(connection):
    inside.set()
    time.sleep(0.1)
    inside.clear()

def long(connection):
    inside.set()
    go_on.wait()

def nobody_is_inside():
    assert not inside.is_set()
    open_store(url + "2").session("s").append(say("child"))

inside, go_on = threading.Event(), threading.Event()
store = open_store(url)
store.open()
fork_while(short, nobody_is_inside)
go_on.clear()
forks.PATIENCE = 0.05
fork_while(long, lambda: None)
assert store.session("s").append(say("parent")).added == 1
""",
        url,
    )


@forks
def test_twenty_forks_of_a_parent_with_threads_inside_sqlite_hang_nowhere(url: str) -> None:
    run(
        """
store = open_store(url, synchronous="NORMAL")

def write(number):
    while True:
        store.session(str(number)).append(say("parent"))
        store.session(str(number)).messages(last=3)

def child():
    with open_store(url + "2", synchronous="NORMAL") as other:
        other.session("s").append(say("child"))

for number in range(3):
    threading.Thread(target=write, args=(number,), daemon=True).start()
for _ in range(20):
    in_a_child(child)
assert open_store(url + "2").session("s").count() == 20
""",
        url,
    )
