"""Files that turn against the store: read-only, full, locked, damaged, moved away. A wait or one clear error each time.

Each happens to a process of its own, which must end by itself and say nothing. What it was told is stored is there
afterwards, and nothing else is.
"""

# ruff: noqa: ASYNC240 - the tests look at small files of their own

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chatkeep import (
    ChatkeepError,
    ChatMessage,
    CorruptRecordError,
    OutcomeUnknownError,
    Store,
    StoreError,
    StoreUnavailableError,
    open_store,
)
from chatkeep_sqlite.backend import SQLiteBackend

PAGE = 4096

CHILD = """
import asyncio, os, subprocess, sys
from pathlib import Path
from chatkeep import ChatMessage, open_store
from chatkeep.errors import ChatkeepError, StoreError, StoreUnavailableError

path = sys.argv[1]
folder = os.path.dirname(path)
acknowledged = []

def store_on(path=path, synchronous="NORMAL", **options):
    # The process ends, not the machine: this need not wait for the disk.
    return open_store("sqlite:///" + path, synchronous=synchronous, **options)

def say(*said):
    return [ChatMessage.user(text) for text in said]

async def said(store, session="s"):
    return [message.text for message in await store.session(session).messages()]

async def append(store, text="never", session="s"):
    # What is acknowledged is printed when the process ends.
    await store.session(session).append(say(text))
    acknowledged.append(text.split()[0])

async def refused(call, *words, kind=StoreUnavailableError, without="nothing of this"):
    # One of chatkeep's errors, one line, which names the file and says the words.
    try:
        await call
    except ChatkeepError as error:
        text = str(error)
        assert isinstance(error, kind) and len(text.splitlines()) == 1, repr(error)
        assert os.path.basename(path) in text and all(word in text for word in words), text
        assert without not in text, text
    else:
        raise AssertionError("it was not refused")

def outside(code, *arguments):
    # In another process: whoever opens and closes a database's file beside SQLite takes SQLite's locks away.
    subprocess.run([sys.executable, "-I", "-S", "-c", code, *arguments], check=True)

def holding(path, *statements):
    # A process that has executed the statements and keeps its connection until its input ends or it is told to go.
    code = ("import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None); "
            "[connection.execute(each).fetchall() for each in sys.argv[2:]]; "
            "print(flush=True); sys.stdin.read(); connection.close()")
    holder = subprocess.Popen([sys.executable, "-I", "-c", code, path, *statements], stdin=-1, stdout=-1)
    holder.stdout.readline()
    return holder

def release(holder):
    holder.communicate()
    assert holder.returncode == 0
"""

AS_NOBODY_SPECIAL = """
if os.geteuid() == 0:  # root may write everything as long as it has its capabilities
    import ctypes
    assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "chat.db"


def child(script: str, path: Path) -> list[str]:
    """Run `main` of the script in a process of its own, which must end well. What was acknowledged there."""
    whole = f"{CHILD}{script}\nasyncio.run(main())\nprint(*acknowledged, sep='\\n')"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", whole, str(path)], capture_output=True, text=True, timeout=90, check=False
    )
    assert not ended.stderr, ended.stderr
    assert ended.returncode == 0
    return ended.stdout.split()


def store_on(path: Path, **options: Any) -> Store[ChatMessage]:
    return open_store(f"sqlite:///{path}", synchronous="NORMAL", **options)


async def stored(path: Path, session: str = "s") -> list[str]:
    """The first word of each message that is found when the file is opened afresh."""
    async with store_on(path, create=False) as store:
        return [message.text.split()[0] for message in await store.session(session).messages()]


async def fill(path: Path, *said: str, session: str = "s") -> None:
    async with store_on(path) as store:
        await store.session(session).append([ChatMessage.user(text) for text in said])


# What cannot be opened


async def test_what_cannot_be_opened_is_left_as_it_is_and_opened_once_the_fault_is_gone(path: Path) -> None:
    await fill(path, "before")
    good = path.read_bytes()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE chatkeep_format SET version = 2")
    newer = path.read_bytes()
    bad = {
        "diary.db": (b"Dear diary, " * 1000, "is no SQLite database: choose another file"),
        "newer.db": (newer, "upgrade chatkeep"),
        "short.db": (good[: 3 * PAGE], "is damaged"),
        "stub.db": (good[:50], "is damaged"),
        "schema.db": (
            good.replace(b"TABLE chatkeep_state", b"T" * 20).replace(b"chatkeep_state", b"\xff" * 14),
            "codec",
        ),
    }
    for name, (content, _) in bad.items():
        (path.parent / name).write_bytes(content)
    script = f"""
async def main():
    global path
    good = Path(folder, "good.db").read_bytes()
    for name, words in {[(name, words) for name, (_, words) in bad.items()]!r}:
        path = os.path.join(folder, name)
        bad = Path(path).read_bytes()
        store = store_on(path)
        for _ in range(2):
            await refused(said(store), words, kind=StoreError)
            await refused(append(store), words, kind=StoreError)
        while any(os.path.exists(path + end) for end in ("-wal", "-shm", "-journal")):
            await asyncio.sleep(0.01)  # until what was opened in vain is closed
        assert Path(path).read_bytes() == bad
        Path(path).write_bytes(good)
        await append(store, name)
        assert await said(store) == ["before", name]
        await store.close()

    path = os.path.join(folder, "missing", "chat.db")
    store = store_on(path)
    await refused(append(store), "folder", "missing' does not exist; make it")
    os.mkdir(os.path.dirname(path))
    await append(store, "made")
    await store.close()

    path = os.path.join(folder, "empty.db")
    Path(path).touch()
    async with store_on(path) as store:
        await append(store, "new")

    gone = os.path.join(folder, "gone")
    os.mkdir(gone)
    os.chdir(gone)
    os.rmdir(gone)
    path = "chat.db"
    await refused(append(store_on(path)), "current folder is not there any more", "absolute path")
"""
    (path.parent / "good.db").write_bytes(good)
    assert child(script, path) == [*bad, "made", "new"]


async def test_the_writes_of_a_database_that_is_gone_are_not_thrown_away_for_a_new_one(path: Path) -> None:
    """SQLite deletes a write-ahead log beside a file that is empty or not there yet."""
    killed = (
        "async def main():\n    await append(store_on(), 'precious')\n    print('precious')\n    sys.stdout.flush()\n"
    )
    assert child(killed + "    os._exit(0)", path) == ["precious"]
    away = path.with_name("away.db")
    path.rename(away)
    for missing in (True, False):
        if not missing:
            path.touch()
        with pytest.raises(
            StoreUnavailableError, match=r"missing or empty, and beside it lies .*'.*-wal' and '.*-shm'\. Put that back"
        ):
            await store_on(path).open()
        assert path.exists() is not missing
    away.replace(path)
    assert await stored(path) == ["precious"]


# Read-only


async def test_what_may_not_be_written_is_read_where_sqlite_can_and_refused_in_words_else(path: Path) -> None:
    await fill(path, "before")
    content = path.read_bytes()
    script = f"""{AS_NOBODY_SPECIAL}
async def main():
    os.chmod(path, 0o444)
    async with store_on() as store:
        for _ in range(2):
            assert await said(store) == ["before"]
            await refused(append(store), "chat.db' is read-only for this program", "can be read",
                          "give it permission to write, and open a new store")
    os.chmod(path, 0o644)
    async with store_on() as store:  # SQLite has given its files beside the database the same permissions
        await refused(append(store), "chat.db-shm' is read-only")
    os.chmod(path + "-shm", 0o644)
    os.chmod(path + "-wal", 0o644)
    async with store_on() as store:
        await append(store, "again")

    os.chmod(path, 0)
    store = store_on()
    await refused(said(store), "cannot be opened", "see that this program may read and write it")
    os.chmod(path, 0o644)
    await append(store, "readable")
    await store.close()

    os.chmod(folder, 0o555)
    store = store_on()
    for call in (said, append):
        await refused(call(store), "not even to be read", "the folder", "is read-only", "copy the file")
    await refused(append(store_on(path + "2")), "cannot make", "Permission denied")
    os.chmod(folder, 0o755)
    await append(store, "writable")
    assert await said(store) == ["before", "again", "readable", "writable"]
    os.chmod(folder, 0o555)  # what is open stays so
    os.chmod(path, 0o444)
    await append(store, "open")
    os.chmod(folder, 0o000)
    await asyncio.sleep(0.02)  # for it is not looked for at every call
    await refused(append(store), "cannot be reached any more (Permission denied)", "Make it reachable again")
    os.chmod(folder, 0o755)
    await append(store, "reached")
    await store.close()
"""
    acknowledged = child(script, path)
    assert acknowledged == ["again", "readable", "writable", "open", "reached"]
    assert await stored(path) == ["before", *acknowledged]
    assert path.read_bytes()[:16] == content[:16]


# No room


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The path of a database on a disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("no full disk: there is no program `mount` here")
    if mounted.returncode:
        pytest.skip(f"no full disk: a small tmpfs may not be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk / "chat.db"
    finally:
        subprocess.run(["umount", disk], check=True)


GROUP = """
async def group(store, size):
    # One hundred appends at once, of which only some have room; each is told.
    calls = [append(store, f"{number} " + "x" * size, session="group") for number in range(100)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failed = [answer for answer in answers if answer is not None]
    assert failed and all(type(answer) is StoreUnavailableError for answer in failed), failed
    assert sorted(acknowledged) == sorted(text.split()[0] for text in await said(store, "group"))

async def until_refused(store, *words):
    for number in range(100, 2000):
        try:
            await append(store, f"{number} " + "y" * 3000, session="group")
        except StoreError:
            break
    for _ in range(2):
        await refused(append(store, "never " + "y" * 3000), *words)
"""


@pytest.mark.parametrize("ends", ["closed", "killed"])
async def test_on_a_full_disk_each_write_is_told_and_what_was_acknowledged_is_kept(small_disk: Path, ends: str) -> None:
    script = f"""{GROUP}
def take(*, leave=0):
    with open(folder + "/filler", "wb", buffering=0) as filler:
        status = os.statvfs(folder)
        filler.write(bytes(status.f_bavail * status.f_frsize - leave))

async def main():
    no_room = ("there is no room for", "free space on its disk")
    take()
    store = store_on(synchronous="FULL")
    for _ in range(2):
        await refused(append(store), *no_room)
    os.unlink(folder + "/filler")
    await store.session("other").append(say("other"))
    await store.close()

    take()
    store = store_on(synchronous="FULL")
    await refused(said(store, "other"), *no_room)
    os.unlink(folder + "/filler")
    assert await said(store, "other") == ["other"]
    take(leave=200_000)
    await group(store, 5000)
    await until_refused(store, *no_room)
    assert await said(store, "other") == ["other"]
    os.unlink(folder + "/filler")
    await append(store, "5000", session="group")
    take()
    await refused(append(store, "never " + "z" * 9000), *no_room)
    if {ends == "killed"}:
        print(*acknowledged, sep="\\n", flush=True)
        os._exit(0)
    await store.close()
"""
    acknowledged = child(script, small_disk)
    (small_disk.parent / "filler").unlink()
    assert len(acknowledged) >= 2
    assert sorted(await stored(small_disk, "group")) == sorted(acknowledged)
    assert await stored(small_disk) == []


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no limit on the size of files")
@pytest.mark.parametrize("ends", ["closed", "killed"])
async def test_under_a_limit_on_the_size_of_files_each_write_is_told_and_its_outcome_is_known(
    path: Path, ends: str
) -> None:
    """As under a quota: SQLite does not call this a full disk, but an error of the disk."""
    script = f"""{GROUP}
import resource, signal

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = store_on(synchronous="FULL")
    await store.session("other").append(say("other"))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path + "-wal") + 100_000, unlimited[1]))
    await group(store, 3000)
    await until_refused(store, "cannot be written", "nothing was written", "a quota or a limit")
    assert await said(store, "other") == ["other"]
    if {ends == "killed"}:
        print(*acknowledged, sep="\\n", flush=True)
        os._exit(0)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    await append(store, "5000", session="group")
    await store.close()
"""
    acknowledged = child(script, path)
    assert len(acknowledged) >= 2
    assert sorted(await stored(path, "group")) == sorted(acknowledged)
    assert await stored(path) == []


class Unsure:
    """A connection whose disk does not confirm that a commit has arrived: no real one here can be made to do so."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, statement: str) -> sqlite3.Cursor:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        return self.connection.execute(statement)


async def test_of_a_commit_that_the_disk_does_not_confirm_the_outcome_is_unknown(path: Path) -> None:
    async with store_on(path) as store:
        await store.open()
        assert isinstance(store.backend, SQLiteBackend)
        assert store.backend._writer is not None
        connection = store.backend._writer._connection
        sure = connection._conn
        connection._connection = Unsure(sure)  # type: ignore[assignment]
        with pytest.raises(
            OutcomeUnknownError, match=r"may or may not be stored; send it again with the same batch_id"
        ):
            await store.session("s").append([ChatMessage.user("once")], batch_id="x")
        connection._connection = sure
        await store.session("s").append([ChatMessage.user("once")], batch_id="x")
    assert await stored(path) == ["once"]


# Locked


async def test_a_lock_is_waited_for_and_one_that_stays_is_an_error_before_the_timeout(path: Path) -> None:
    for name in ("short", "exclusive", "mode", "reader"):
        await fill(path.with_name(f"{name}.db"), "before")
    script = """
async def main():
    short, exclusive, mode = (os.path.join(folder, f"{name}.db") for name in ("short", "exclusive", "mode"))
    while_open, forever = store_on(short), store_on(exclusive, timeout=3)
    await asyncio.gather(while_open.open(), forever.open())
    locks = [holding(name, "BEGIN EXCLUSIVE") for name in (short, exclusive)]
    locks.append(holding(mode, "PRAGMA locking_mode = EXCLUSIVE", "BEGIN IMMEDIATE", "COMMIT"))
    asyncio.get_running_loop().call_later(3, release, locks[0])
    at_opening = store_on(short)
    never_opened = store_on(mode, timeout=20, connect_timeout=2)

    async def stays_locked():
        global path
        path = exclusive
        assert await said(forever) == ["before"]
        calls = [append(forever) for _ in range(20)]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, StoreUnavailableError) and "exclusive.db' stays" in str(answer), answer
            assert "locked by another program" in str(answer), answer

    async def cannot_be_opened():
        for call in (said, append):
            try:
                await call(never_opened)
            except StoreUnavailableError as error:
                assert "mode.db" in str(error), error
            else:
                raise AssertionError("it was not refused")

    await asyncio.gather(
        append(while_open, "waited"), append(at_opening, "waited"), stays_locked(), cannot_be_opened()
    )
    for lock in locks[1:]:
        release(lock)
    for store in (forever, never_opened):
        assert await said(store) == ["before"]
        await append(store, "free")
        assert await said(store) == ["before", "free"]
    assert await said(while_open) == ["before", "waited", "waited"]
    for store in (while_open, at_opening, forever, never_opened):
        await store.close()
"""
    assert sorted(child(script, path)) == ["free", "free", "waited", "waited"]
    assert await stored(path.with_name("short.db")) == ["before", "waited", "waited"]


async def test_a_reader_that_never_ends_hinders_nobody(path: Path) -> None:
    await fill(path, "before")
    script = """
async def main():
    store = store_on()
    await store.open()
    reader = holding(path, "BEGIN", "SELECT count(*) FROM chatkeep_records")
    for number in range(100):
        await append(store, f"{number} " + "x" * 50_000)
    assert os.path.getsize(path + "-wal") > 100 * 50_000
    assert len(await said(store)) == 101
    await store.session("gone").append(say("gone"))
    assert await store.session("gone").delete()
    await store.close()
    release(reader)
"""
    acknowledged = child(script, path)
    assert len(acknowledged) == 100
    assert await stored(path) == ["before", *acknowledged]


# Damaged


async def test_what_is_damaged_while_it_is_open_is_said_and_harms_no_other_session(path: Path) -> None:
    script = """
DAMAGE = '''
import os, sys
name, mark = sys.argv[1:]
with open(name, "r+b") as file:
    place = file.read().rindex(mark.encode()) // 4096 * 4096
    file.seek(place)
    file.write(b"\\\\xff" * 4096)
'''

async def main():
    async with store_on() as store:
        for session in ("sound", "struck"):
            for number in range(20):
                await store.session(session).append(say(f"{session}-{number} " + "x" * 1500))
    store = store_on()
    assert len(await said(store, "sound")) == 20
    outside(DAMAGE, path, "struck-9")
    struck = store.session("struck")
    for call in (struck.messages, struck.verify, struck.repair, lambda: struck.fork("copy")):
        await refused(call(), "is damaged", "restore a backup", ".recover", kind=StoreError)
    assert len(await said(store, "sound")) == 20
    await append(store, "after", session="sound")
    assert await store.session("sound").verify() == []
    await store.close()
"""
    assert child(script, path) == ["after"]
    assert (await stored(path, "sound"))[-2:] == ["sound-19", "after"]
    async with store_on(path) as store:
        assert [message.text.split()[0] for message in await store.session("struck").messages(last=3)] == [
            "struck-17",
            "struck-18",
            "struck-19",
        ]
        with pytest.raises(StoreError, match="is damaged"):
            await store.session("struck").messages()


async def test_a_text_that_is_damaged_harms_its_record_alone(path: Path) -> None:
    async with store_on(path, store_text=True) as store:
        await store.session("s").append([ChatMessage.user(f"text-{number}", id=f"id-{number}") for number in range(5)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE chatkeep_records SET format = CAST(x'ff' AS TEXT) WHERE id = 'id-1'")
        connection.execute("UPDATE chatkeep_records SET text = CAST(x'ff' AS TEXT) WHERE id = 'id-3'")
    async with store_on(path, on_corrupt="skip") as store:
        session = store.session("s")
        assert [message.id for message in await session.messages()] == ["id-0", "id-2", "id-3", "id-4"]
        assert [finding.seq for finding in await session.verify()] == [2]
        assert [finding.seq for finding in await session.repair()] == [2]
        assert await session.verify() == []
    async with store_on(path) as store:
        assert [message.id for message in await store.session("s").messages()] == ["id-0", "id-2", "id-3", "id-4"]


async def test_messages_that_are_missing_are_said_to_be_missing(path: Path) -> None:
    await fill(path, "a", "b", "c")
    await fill(path, "other", session="other")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM chatkeep_records WHERE pos & 4294967295 = 2")
    async with store_on(path) as store:
        with pytest.raises(StoreError, match=r"is damaged \(of the 3 messages of a log only 2 are found"):
            await store.session("s").messages()
    assert await stored(path, "other") == ["other"]


async def test_rows_that_contradict_each_other_are_called_damage(path: Path) -> None:
    await fill(path, "before")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM chatkeep_logs")
    async with store_on(path) as store:
        with pytest.raises(StoreError, match=r"is damaged \(UNIQUE constraint failed: chatkeep_records.pos\)"):
            await store.session("s").append([ChatMessage.user("after")])
        await store.session("s").update(title="Bag")
    path.write_bytes(path.read_bytes().replace(b'"Bag"}', b'"Bag"]'))
    async with store_on(path) as store:
        with pytest.raises(StoreError, match=r"is damaged \(Expecting"):
            await store.list_sessions()


async def test_whatever_is_damaged_the_error_is_one_of_chatkeeps(path: Path) -> None:
    """Pages overwritten, bytes turned, ends cut off, all by a fixed chance."""
    chance = random.Random(18)
    async with store_on(path, ttl="30d", store_text=True) as store:
        for user in ("ann", "bob"):
            session = store.scoped(user=user).session("s")
            await session.append([ChatMessage.user(f"{n} {'t' * 300}", id=f"{user}-{n}") for n in range(15)])
            await session.state.set("k", list(range(40)))
            await session.update(title="T", metadata={"a": "b"}, service_session_id=user)
    sound = path.read_bytes()
    seen, lines = set(), set()
    for number in range(40):
        content = bytearray(sound)
        place = (number * 7919) % (len(sound) // PAGE) * PAGE + 100
        how = number % 4
        if how == 0:
            content[place : place + PAGE - 100] = chance.randbytes(PAGE - 100)
        elif how == 1:
            content[place : place + PAGE - 100] = bytes(PAGE - 100)
        elif how == 2:
            del content[place:]
        for _ in range(6 if how == 3 else 0):
            content[place - 100 + chance.randrange(PAGE)] ^= chance.randrange(1, 256)
        struck = path.with_name(f"{number}.db")
        struck.write_bytes(content)
        store = store_on(struck)
        for user in ("ann", "bob"):
            scope = store.scoped(user=user)
            session = scope.session("s")
            for call in (
                session.messages,
                session.verify,
                session.info,
                session.state.items,
                lambda session=session: session.append([ChatMessage.user("new", id="new")]),
                session.pop,
                session.repair,
                lambda scope=scope: scope.list_sessions(),
                lambda scope=scope, user=user: scope.find_by_service_id(user),
                store.sweep,
            ):
                try:
                    await asyncio.wait_for(call(), 60)
                except ChatkeepError as error:
                    seen.add(type(error))
                    lines.add(len(str(error).splitlines()))
        await store.close()
    assert lines == {1}
    assert {StoreError, CorruptRecordError} <= seen


# Moved away while open

AWAY = {
    "file": ("os.rename(path, away)", "os.rename(away, path)", "was moved or deleted while it was open"),
    "files": (
        "[os.rename(path + end, away + end) for end in ('', '-wal', '-shm')]",
        "[os.rename(away + end, path + end) for end in ('', '-wal', '-shm')]",
        "was moved or deleted while it was open",
    ),
    "folder": (
        "os.rename(folder, folder + '-away')",
        "os.rename(folder + '-away', folder)",
        "was moved or deleted while it was open",
    ),
    "replaced": (
        "os.rename(path, away); os.rename(other, path)",
        "os.rename(path, other); os.rename(away, path)",
        "another file has taken the place of",
    ),
}


def away(path: Path, how: str) -> Path:
    return path.parent.with_name("data-away") / "chat.db" if how == "folder" else path.with_name("away.db")


@pytest.mark.parametrize("how", AWAY)
async def test_a_database_that_is_moved_while_it_is_open_holds_all_that_was_acknowledged(path: Path, how: str) -> None:
    await fill(path.with_name("other.db"), "other")
    move, back, words = AWAY[how]
    script = f"""
async def main():
    away, other = os.path.join(folder, "away.db"), os.path.join(folder, "other.db")
    store = store_on()
    await append(store, "before")
    for turn in range(2):
        {move}
        await asyncio.sleep(0.02)
        for call in (append, said, append) if turn else (said, append, said):
            await refused(call(store), {words!r}, "nothing was written", "Close this store and open a new one on",
                          "All that was stored before is in it", without="still in")
        calls = [append(store) for _ in range(20)]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert type(answer) is StoreUnavailableError, answer
        {back}
        if {how!r} in ("file", "replaced"):  # without its log, which is gone: nobody else is to find it
            await refused(append(store), {words!r})
            await store.close()
            store = store_on()
        await append(store, f"back-{{turn}}")
    writes = [asyncio.create_task(append(store, f"{{number}}")) for number in range(100)]
    while len(acknowledged) < 10:
        await asyncio.sleep(0)
    {move}
    for answer in await asyncio.gather(*writes, return_exceptions=True):
        assert answer is None or type(answer) is StoreUnavailableError, answer
    await store.close()
"""
    acknowledged = child(script, path)
    assert acknowledged[:3] == ["before", "back-0", "back-1"]
    assert await stored(away(path, how)) == acknowledged
    if how == "replaced":
        assert await stored(path) == ["other"], "the former one's writes went into the new one"
    elif how != "folder":
        await fill(path, "new")
        assert await stored(path) == ["new"]


async def test_a_store_that_is_closed_after_its_database_was_moved_leaves_everything_in_it(path: Path) -> None:
    script = """
async def main():
    store = store_on()
    await append(store, "before")
    os.rename(path, os.path.join(folder, "away.db"))
    await store.close()
"""
    assert child(script, path) == ["before"]
    assert await stored(away(path, "file")) == ["before"]


@pytest.mark.parametrize("how", ["file", "replaced"])
async def test_a_database_that_is_moved_while_it_is_being_opened_is_refused(path: Path, how: str) -> None:
    await fill(path, "before")
    await fill(path.with_name("other.db"), "other")
    move, back, words = AWAY[how]
    script = f"""
async def main():
    away, other = os.path.join(folder, "away.db"), os.path.join(folder, "other.db")
    lock = holding(path, "PRAGMA locking_mode = EXCLUSIVE", "BEGIN IMMEDIATE", "COMMIT")
    store = store_on()
    opening = asyncio.create_task(refused(said(store), {words!r}, "nothing was written"))
    await asyncio.sleep(0.3)
    assert not opening.done()
    {move}
    release(lock)
    await opening
    {back}
    assert await said(store) == ["before"]
    await store.close()
"""
    child(script, path)
    assert await stored(path) == ["before"]
    assert await stored(path.with_name("other.db")) == ["other"]


async def test_a_database_that_was_deleted_is_refused_at_the_next_call(path: Path) -> None:
    script = """
async def main():
    for end in ("", "-wal"):
        store = store_on()
        await append(store, "before")
        os.unlink(path + end)
        await asyncio.sleep(0.02)  # for it is not looked for at every call
        if not end:
            await refused(said(store), "was moved or deleted while it was open")
        await asyncio.sleep(0.2)  # for the log alone is looked less often
        await refused(append(store), "deleted", "nothing was written")
        await store.close()
"""
    child(script, path)
    assert await stored(path) == ["before"], "the second time it was the write-ahead log alone"


async def test_a_store_goes_on_with_the_file_that_it_opened_wherever_links_and_the_process_go(path: Path) -> None:
    script = """
async def main():
    global path
    os.chdir(folder)
    os.mkdir("deep")
    os.symlink("deep/one.db", "link.db")  # to a file that is not there yet
    linked, relative = store_on("link.db"), store_on("deep/two.db")
    await append(linked, "one")
    await append(relative, "two")
    os.unlink("link.db")
    os.symlink("deep/other.db", "link.db")
    os.chdir("/")
    await append(linked, "one")
    await append(relative, "two")
    assert (await said(linked), await said(relative)) == (["one", "one"], ["two", "two"])
    path = "deep/two.db"
    os.rename(folder + "/deep/two.db", folder + "/deep/three.db")
    await asyncio.sleep(0.02)  # for it is not looked for at every call
    await refused(append(relative), "was moved or deleted")
    os.rename(folder + "/deep/three.db", folder + "/deep/two.db")
    await asyncio.gather(linked.close(), relative.close())
"""
    child(script, path)
    assert sorted(each.name for each in (path.parent / "deep").iterdir()) == ["one.db", "two.db"]
    assert await stored(path.parent / "deep" / "one.db") == ["one", "one"]
    assert await stored(path.parent / "deep" / "two.db") == ["two", "two"]
