"""What is SQLite's own: the file, its permissions and locks, shared commits, and statements that use their indexes."""

# ruff: noqa: ASYNC240 - the tests look at small files of their own

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from chatkeep import ChatMessage, ConflictError, Store, StoreUnavailableError, open_store
from chatkeep.errors import ConfigError, DuplicateIdError, InvalidURLError, StoreFormatError
from chatkeep_sqlite.backend import SQLiteBackend
from chatkeep_sqlite.files import create_file
from chatkeep_sqlite.schema import prepare

FILES = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


def store_on(path: Path, **options: Any) -> Store[ChatMessage]:
    return open_store(f"sqlite:///{path}", **options)


def backend_of(store: Store[ChatMessage]) -> SQLiteBackend:
    assert isinstance(store.backend, SQLiteBackend)
    return store.backend


def say(*said: str, ids: bool = False) -> list[ChatMessage]:
    return [ChatMessage.user(text, id=text if ids else None) for text in said]


async def said(store: Store[ChatMessage], session: str = "s") -> list[str]:
    return [message.text for message in await store.session(session).messages()]


async def statements(store: Store[ChatMessage], *, stop: bool = False) -> list[str]:
    """A list that grows by each statement that the store executes from now on."""
    found: list[str] = []
    backend = backend_of(store)
    await store.open()
    assert backend._writer is not None
    assert backend._reader is not None
    for worker in (backend._writer, backend._reader):
        await worker.call(lambda connection: connection.set_trace_callback(None if stop else found.append))
    return found


def ended_threads(before: int) -> bool:
    """Whether no more threads are left than there were before; they may take a moment to end."""
    for _ in range(1000):
        if threading.active_count() <= before:
            return True
        time.sleep(0.005)
    return False


# The file


async def test_a_new_file_and_its_journals_can_be_read_by_their_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        async with store_on(path) as store:
            await store.session("s").append(say("a"))
            for end in FILES:
                mode = stat.S_IMODE(Path(f"{path}{end}").stat().st_mode)
                assert mode == 0o600, f"chat.db{end} has the permissions {mode:o}"
    finally:
        os.umask(before)


async def test_the_permissions_of_a_file_that_is_there_already_are_left_alone(path: Path) -> None:
    path.touch(mode=0o640)
    path.chmod(0o640)
    async with store_on(path) as store:
        await store.session("s").append(say("a"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


async def test_what_was_stored_survives_a_reopening(path: Path) -> None:
    async with store_on(path) as store:
        session = store.scoped(tenant="acme").session("s")
        await session.append(say("a", "b", ids=True), batch_id="x")
        await session.state.set("k", {"n": 1})
        await session.update(title="Bag", metadata={"topic": "bags"})
        before = await session.info()
    async with store_on(path) as store:
        session = store.scoped(tenant="acme").session("s")
        assert [message.text for message in await session.messages()] == ["a", "b"]
        assert await session.state.items() == {"k": {"n": 1}}
        assert await session.info() == before
        assert (await session.append(say("a", ids=True))).added == 0
        await session.append(say("x", "y"), batch_id="x")
        assert await session.count() == 2


async def test_only_the_file_is_left_after_a_close(path: Path) -> None:
    async with store_on(path) as store:
        await store.session("s").append(say("a"))
    assert [each.name for each in path.parent.iterdir()] == ["chat.db"]


@pytest.mark.parametrize(
    "how", ["delete", "pop", "clear", "redact", "edit", "trim", "state", "title", "erase", "purge"]
)
async def test_what_was_removed_does_not_remain_in_the_file(path: Path, how: str) -> None:
    secret = "4929-1234-5678-9012"
    async with store_on(path, store_text=True, max_messages=3 if how == "trim" else None) as store:
        scope = store.scoped(tenant="acme", user="alice")
        session = scope.session("s")
        await scope.session("other").append(say(*(f"other {number} {'x' * 300}" for number in range(40))))
        await session.append(say("before", f"my card is {secret}"))
        await session.append(say(f"{'y' * 9000} {secret} {'y' * 9000}"))
        await session.state.set("card", secret)
        await session.update(title=secret, metadata={"card": secret})
        if how not in ("delete", "erase", "purge"):
            await session.update(title=None, metadata={"card": None})
            await session.state.delete("card")
        if how in ("state", "title"):
            await session.delete()
        if how == "delete":
            await session.delete()
        elif how == "pop":
            await session.pop(2)
        elif how == "clear":
            await session.clear()
        elif how == "redact":
            await session.redact(2)
            await session.redact(3)
        elif how == "edit":
            await session.replace(2, ChatMessage.user("edited"))
            await session.replace(3, ChatMessage.user("edited"))
        elif how == "trim":
            await session.append(say("c", "d", "e"))
        elif how == "erase":
            await scope.erase()
        elif how == "purge":
            await store.purge(0)
    content = path.read_bytes()
    assert secret.encode() not in content
    if how not in ("erase", "purge"):
        assert b"other 39" in content


# What cannot be opened


async def test_a_missing_folder_is_named(path: Path) -> None:
    store = store_on(path.parent / "missing" / "chat.db")
    with pytest.raises(StoreUnavailableError, match=r"folder .*missing.* does not exist; make it"):
        await store.open()


async def test_a_folder_is_no_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreUnavailableError, match="is a folder"):
        await store_on(path).open()


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 200)
    store = store_on(path)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="is no SQLite database") as refused:
            await store.session("s").append(say("a"))
        assert isinstance(refused.value.__cause__, sqlite3.DatabaseError)
    await store.close()
    assert path.read_bytes() == b"Dear diary, " * 200


async def test_a_newer_stored_format_is_refused_in_words(path: Path) -> None:
    async with store_on(path) as store:
        await store.session("s").append(say("a"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE chatkeep_format SET version = 2")
    store = store_on(path)
    with pytest.raises(StoreFormatError, match="has stored format 2, and this version of chatkeep knows up to 1"):
        await store.session("s").messages()
    await store.close()


async def test_tables_of_others_in_the_same_file_are_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE sessions (id TEXT)")
        connection.execute("INSERT INTO sessions VALUES ('mine')")
    async with store_on(path) as store:
        await store.session("s").append(say("a"))
        await store.purge(0)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM sessions").fetchall() == [("mine",)]


async def test_what_the_plugin_cannot_take_is_refused_before_anything_is_opened() -> None:
    for url in ("sqlite://chat.db", "sqlite:///"):
        with pytest.raises(InvalidURLError, match="sqlite:///chat"):
            open_store(url)
    with pytest.raises(InvalidURLError, match="NUL"):
        open_store("sqlite:///a%00b.db")
    with pytest.raises(ConfigError):
        open_store("sqlite:///chat.db", client=object())
    with pytest.raises(ConfigError, match="synchronous"):
        open_store("sqlite:///chat.db?synchronous=OFF")


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
async def test_every_connection_has_the_settings_that_the_promises_need(path: Path, synchronous: str) -> None:
    async with store_on(path, synchronous=synchronous) as store:
        backend = backend_of(store)
        assert backend._writer is not None
        assert backend._reader is not None
        assert backend._writer is not backend._reader
        for worker in (backend._writer, backend._reader):
            for pragma, value in (
                ("journal_mode", "wal"),
                ("synchronous", 2 if synchronous == "FULL" else 1),
                ("secure_delete", 1),
            ):
                found = await worker.call(lambda each, name=pragma: each.execute(f"PRAGMA {name}").fetchone())
                assert found == (value,)
        health = await store.ping()
        assert (health.details["journal_mode"], health.details["synchronous"]) == ("wal", synchronous)


# Connections, threads, event loops, the process


async def test_five_thousand_handles_take_three_threads_and_three_connections_at_most(path: Path) -> None:
    threads = threading.active_count()
    async with store_on(path) as store:
        sessions = [store.scoped(user=f"u{number % 100}").session(f"s{number}") for number in range(5000)]
        await asyncio.gather(*(session.append(say("a")) for session in sessions))
        assert set(await asyncio.gather(*(session.count() for session in sessions))) == {1}
        assert threading.active_count() - threads <= 3
        if Path("/proc/self/fd").is_dir():
            opened = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
            assert 1 <= opened.count(path) <= 3
    assert ended_threads(threads)


def test_a_process_ends_although_its_store_was_never_closed(path: Path) -> None:
    script = f"""
import asyncio
from chatkeep import ChatMessage, open_store

store = open_store("sqlite:///{path}")

async def use():
    await store.session("s").append([ChatMessage.user("a")])

asyncio.run(use())
print("done")
"""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM chatkeep_records").fetchone() == (1,)


def test_a_fresh_file_is_opened_by_many_at_the_same_instant(path: Path) -> None:
    """Two connections that set WAL at once on a new file are told "locked" at once, whatever the busy timeout."""
    for round in range(5):
        fresh = path.with_name(f"{round}.db")
        start = threading.Barrier(8)

        async def append(fresh: Path = fresh) -> None:
            async with store_on(fresh) as one, store_on(fresh) as other:
                await asyncio.gather(one.session("s").append(say("a")), other.session("s").append(say("b")))

        def use(append: Callable[[], Coroutine[Any, Any, None]] = append, start: threading.Barrier = start) -> None:
            start.wait()
            asyncio.run(append())

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(use) for _ in range(8)]:
                done.result()
        with closing(sqlite3.connect(fresh)) as connection:
            assert connection.execute("SELECT count(*) FROM chatkeep_records").fetchone() == (16,)


def test_a_fresh_file_is_prepared_by_many_at_the_same_instant(path: Path) -> None:
    """About one round in six is told "locked" where nobody tries again."""
    start = threading.Barrier(8)

    def prepare_it(fresh: Path) -> None:
        start.wait()
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            prepare(connection, str(fresh), synchronous="NORMAL", patience=20)

    with ThreadPoolExecutor(8) as pool:
        for round in range(40):
            fresh = path.with_name(f"{round}.db")
            create_file(str(fresh))
            for done in [pool.submit(prepare_it, fresh) for _ in range(8)]:
                done.result()


@pytest.mark.parametrize("url", ["sqlite:///{path}", "sqlite://"])
def test_one_store_serves_one_event_loop_after_the_other_and_keeps_what_it_has(path: Path, url: str) -> None:
    store = open_store(url.format(path=path))
    threads = threading.active_count()

    async def use(number: int) -> list[str]:
        await store.session("s").append(say(str(number)))
        return await said(store)

    assert asyncio.run(use(0)) == ["0"]
    assert asyncio.run(use(1)) == ["0", "1"]
    assert threading.active_count() - threads <= 2, "each event loop has left threads behind"
    asyncio.run(store.close())
    assert ended_threads(threads)


@pytest.mark.parametrize("how", ["close", "use"])
def test_writes_that_an_event_loop_left_behind_do_not_hinder_the_next_one(path: Path, how: str) -> None:
    store = store_on(path)
    first = asyncio.new_event_loop()
    first.run_until_complete(store.session("s").append(say("a")))
    with locked(path) as release:
        left = [first.create_task(store.session("s").append(say(f"left {number}"))) for number in range(3)]
        first.run_until_complete(asyncio.sleep(0.05))
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        first.close()
        if how == "close":
            release()
            asyncio.run(asyncio.wait_for(store.close(), 20))
            return

        async def use() -> None:
            write = asyncio.create_task(store.session("s").append(say("next")))
            await asyncio.sleep(0.05)
            release()
            await asyncio.wait_for(write, 20)
            assert (await said(store))[-1] == "next"
            await store.close()

        asyncio.run(use())


async def test_a_database_in_memory_is_its_stores_own(path: Path) -> None:
    async with open_store("sqlite://") as one, open_store("sqlite://") as other:
        await one.session("s").append(say("a"))
        assert await said(other) == []


# Shared commits


async def test_writes_that_wait_together_share_commits(path: Path) -> None:
    async with store_on(path) as store:
        await store.session("s").append(say("first"))
        executed = await statements(store)
        await asyncio.gather(*(store.session(f"s{number % 9}").append(say(str(number))) for number in range(400)))
        await statements(store, stop=True)
        commits = executed.count("COMMIT")
        assert executed.count("BEGIN IMMEDIATE") == commits
        assert 1 <= commits <= 20, f"400 writes at once took {commits} commits"


async def test_one_refused_write_takes_nothing_of_its_group_with_it(path: Path) -> None:
    async with store_on(path) as store:
        await store.session("s").append(say("first", ids=True))
        executed = await statements(store)
        answers = await asyncio.gather(
            *(
                store.session("s").append(say(f"{number}/0", f"{number}/1"), expected_tail=99 if number % 3 else None)
                for number in range(30)
            ),
            store.session("s").replace_prefix(1, say("a", "b", "c")),
            store.session("s").append(
                [*say("new", ids=True), ChatMessage.user("other", id="first")], on_conflict="error"
            ),
            store.session("s").state.set("k", 1, expected="never"),
            return_exceptions=True,
        )
        assert executed.count("COMMIT") < 10, "they did not share commits: this shows nothing"
        refused = [number for number, answer in enumerate(answers[:30]) if isinstance(answer, ConflictError)]
        assert refused == [number for number in range(30) if number % 3]
        assert [type(answer) for answer in answers[30:]] == [ValueError, DuplicateIdError, ConflictError]
        written = [number for number in range(30) if number % 3 == 0]
        assert await said(store) == ["first", *(f"{number}/{place}" for number in written for place in (0, 1))]
        assert await store.session("s").state.keys() == []


async def test_nobody_is_answered_before_the_commit(path: Path) -> None:
    async with store_on(path) as store:
        await store.open()
        with closing(sqlite3.connect(path)) as witness:
            for number in range(50):
                await store.session("s").append(say(str(number)))
                (seen,) = witness.execute("SELECT count(*) FROM chatkeep_records").fetchone()
                assert seen == number + 1


async def test_expired_sessions_are_removed_by_and_by_without_being_asked_for(path: Path) -> None:
    async with store_on(path, ttl=60) as store:
        backend = backend_of(store)
        for number in range(10):
            await store.session(f"s{number}").append(say("a"))
        backend.clock = lambda clock=backend.clock: clock() + 100  # type: ignore[misc]
        assert backend._group is not None
        backend._group._swept -= 100
        await store.session("new").append(say("b"))
        with closing(sqlite3.connect(path)) as witness:
            assert witness.execute("SELECT count(*) FROM chatkeep_sessions").fetchone() == (1,)
            assert witness.execute("SELECT count(*) FROM chatkeep_records").fetchone() == (1,)
        assert await said(store, "new") == ["b"]


# Locked by others


@contextmanager
def locked(path: Path) -> Iterator[Any]:
    """The file, locked against writers by another connection until the block ends or ``release()`` is called."""
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")

    def release() -> None:
        if holder.in_transaction:
            holder.execute("ROLLBACK")

    try:
        yield release
    finally:
        release()
        holder.close()


async def test_a_lock_held_by_another_program_for_a_while_is_waited_for(path: Path) -> None:
    async with store_on(path) as store:
        await store.session("s").append(say("a"))
        with locked(path) as release:
            asyncio.get_running_loop().call_later(1, release)
            answers = await asyncio.gather(*(store.session("s").append(say(str(number))) for number in range(20)))
        assert [answer.added for answer in answers] == [1] * 20
        assert len(await said(store)) == 21


async def test_a_lock_that_is_never_released_is_one_clear_error_and_nothing_is_written(path: Path) -> None:
    async with store_on(path, timeout=2) as store:
        await store.session("s").append(say("a"))
        with locked(path):
            writes = [asyncio.create_task(store.session("s").append(say("early")))]
            for number in range(4):
                await asyncio.sleep(0.3)
                writes.append(asyncio.create_task(store.session("s").append(say(f"late {number}"))))
            assert await said(store) == ["a"], "a lock against writers hinders no reader"
            answers = await asyncio.gather(*writes, return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, StoreUnavailableError), "that nothing was written is known"
            assert "locked by another program" in str(answer)
            assert "nothing was written" in str(answer)
        await store.session("s").append(say("b"))
        assert await said(store) == ["a", "b"]


async def test_cancelled_while_the_file_is_locked_a_write_is_settled_first(path: Path) -> None:
    async with store_on(path, timeout=20) as store:
        await store.session("s").append(say("a"))
        with locked(path) as release:
            writes = [asyncio.create_task(store.session("s").append(say(f"b{number}"))) for number in range(3)]
            await asyncio.sleep(0.1)
            for write in writes:
                write.cancel()
            await asyncio.sleep(0.1)
            assert not any(write.done() for write in writes)
            release()
            await asyncio.wait(writes)
        assert all(write.cancelled() for write in writes)
        assert sorted(await said(store)) == ["a", "b0", "b1", "b2"]


async def test_closing_while_the_file_is_locked_tells_those_who_wait_and_ends(path: Path) -> None:
    threads = threading.active_count()
    store = store_on(path, timeout=2)
    await store.session("s").append(say("a"))
    with locked(path):
        write = asyncio.create_task(store.session("s").append(say("b")))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(store.close(), 20)
        with pytest.raises(StoreUnavailableError, match="nothing was written"):
            await write
    assert ended_threads(threads)
    async with store_on(path) as again:
        assert await said(again) == ["a"]


async def test_a_file_that_is_locked_at_the_opening_is_waited_for(path: Path) -> None:
    sqlite3.connect(path).close()
    async with store_on(path) as store:
        with locked(path) as release:
            asyncio.get_running_loop().call_later(0.5, release)
            await store.session("s").append(say("a"))
        assert await said(store) == ["a"]


async def test_a_file_that_stays_locked_at_the_opening_is_unavailable_within_the_connect_timeout(path: Path) -> None:
    path.touch()
    store = store_on(path, connect_timeout=2)
    with locked(path), pytest.raises(StoreUnavailableError):
        await asyncio.wait_for(store.open(), 20)
    await store.session("s").append(say("a"))
    assert await said(store) == ["a"]
    await store.close()


# Statements


async def test_no_statement_of_everyday_work_reads_a_whole_table(path: Path) -> None:
    async with store_on(path, max_messages=50, max_age="30d", ttl="90d") as store:
        scope = store.scoped(tenant="acme", user="alice")
        session = scope.session("s")
        await session.append(say("first"))
        executed = await statements(store)
        await session.append(say("a", "b"), batch_id="x")
        await session.append(say("c", "d", ids=True), on_conflict="replace")
        await session.append(say("c", ids=True), expected_tail=(await session.messages(last=1)).tail)
        for number in range(60):
            await session.append(say(f"m{number}", ids=True))
        history = await session.messages(last=20)
        await session.messages(after=history.start, limit=10)
        await session.messages(before=history.end, limit=10)
        _ = [each async for each in session.stream()]
        await session.pop()
        await session.replace(history.seqs[2], ChatMessage.user("edited"))
        await session.redact(history.seqs[3])
        await session.truncate_after(history.seqs[10])
        await session.replace_prefix(history.seqs[4], say("summary"))
        await session.state.set("k", 1)
        await session.state.set("k", 2, expected=(await session.state.entry("k") or ("", ""))[1])
        await session.state.keys("k")
        await session.state.items()
        await session.state.delete("k")
        await session.update(title="Bag", metadata={"topic": "bags"}, service_session_id="resp_1")
        await session.info()
        await session.exists()
        await session.count()
        page = await scope.list_sessions(limit=1)
        await scope.list_sessions(limit=1, after=page.next)
        await scope.find_by_service_id("resp_1")
        await scope.state.set("k", 1)
        async with session.lease():
            pass
        await session.fork("branch")
        await session.delete()
        await scope.erase()
        await store.sweep()
        await statements(store, stop=True)
    kinds = ("SELECT", "INSERT", "UPDATE", "DELETE")
    distinct = {statement for statement in executed if statement.startswith(kinds)}
    assert len(distinct) > 60
    with closing(sqlite3.connect(path)) as connection:
        for statement in distinct:
            for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}"):
                whole = step.startswith("SCAN") and "(subquery" not in step and "CONSTANT ROW" not in step
                assert not whole, f"{step}: {statement}"
                assert step != "USE TEMP B-TREE FOR ORDER BY", f"sorts all it finds: {statement}"


async def test_what_is_appended_and_read_touches_as_many_rows_at_ten_messages_as_at_ten_thousand(path: Path) -> None:
    """Counted in steps of SQLite's virtual machine."""
    async with store_on(path, max_messages=20_000) as store:
        backend = backend_of(store)
        session = store.session("s")
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        async def cost() -> int:
            nonlocal steps
            steps = 0
            await session.append(say("q", "a"))
            await session.append([ChatMessage.user("b", id=os.urandom(8).hex())])
            await session.messages(last=5)
            await session.count()
            await session.pop()
            return steps

        await session.append(say(*(str(number) for number in range(10))))
        assert backend._writer is not None
        assert backend._reader is not None
        for worker in (backend._writer, backend._reader):
            await worker.call(lambda connection: connection.set_progress_handler(count, 1))
        few = await cost()
        for start in range(0, 10_000, 500):
            await session.append(say(*(str(number) for number in range(start, start + 500))))
        many = await cost()
        assert few > 100
        assert many <= 1.1 * few
