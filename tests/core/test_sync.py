"""`chatkeep.sync`: complete; refused beside an event loop; interrupted without loss; forked; ended with the process."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import chatkeep
from chatkeep import (
    ABSENT,
    ChatMessage,
    ChatMessageCodec,
    ConflictError,
    CorruptRecordError,
    LeaseHeldError,
    OpenAIChatCodec,
    Store,
    StoreClosedError,
    StoreLoopError,
    StoreUnavailableError,
    Window,
    sync,
)
from chatkeep.background import Call, current_loop
from chatkeep.blocking import AT_ONCE, Origin
from chatkeep.lease import Lease
from chatkeep.memory import MemoryBackend
from chatkeep.records import Record, Scope

ASYNC: dict[type, type] = {
    sync.Store: chatkeep.Store,
    sync.ScopedStore: chatkeep.ScopedStore,
    sync.Session: chatkeep.Session,
    sync.Log: chatkeep.Log,
    sync.State: chatkeep.State,
    sync.Lease: Lease,
}
MACHINERY = {"backend", "connection"}
"""What an async store has beside its methods, and whose own methods are awaited on the store's loop."""


@pytest.fixture
def store() -> Iterator[sync.Store[ChatMessage]]:
    with sync.open_store("memory://") as store:
        yield store


def say(*said: str) -> list[ChatMessage]:
    return [ChatMessage.user(text) for text in said]


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


# Complete


def public(kind: type) -> dict[str, Any]:
    """A class's public names, and what they are in the class."""
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def words(function: Any) -> str:
    """A signature, in the words of the sync API."""
    return str(inspect.signature(function)).replace("AsyncIterator", "Iterator").replace("about.", "")


@pytest.mark.parametrize("kind", ASYNC, ids=lambda kind: kind.__name__)
def test_everything_that_is_public_has_a_twin_of_its_kind_with_the_same_signature(kind: type) -> None:
    twins, originals = public(kind), public(ASYNC[kind])
    own = set(vars(chatkeep.open_store("memory://"))) - MACHINERY if kind is sync.Store else set()
    assert twins.keys() == originals.keys() | {name for name in own if not name.startswith("_")}
    for name, original in originals.items():
        twin = twins[name]
        assert twin.__doc__ == original.__doc__, name
        if isinstance(original, property):
            assert isinstance(twin, property), name
            continue
        assert inspect.isfunction(twin), name
        assert not inspect.iscoroutinefunction(twin), name
        assert not inspect.isasyncgenfunction(twin), name
        assert (twin.__name__, words(twin)) == (name, words(original))


@pytest.mark.parametrize("kind", ASYNC, ids=lambda kind: kind.__name__)
def test_what_is_entered_with_async_with_is_entered_with_with(kind: type) -> None:
    for name in ("enter", "exit"):
        assert hasattr(kind, f"__{name}__") == hasattr(ASYNC[kind], f"__a{name}__")


def test_opening_takes_and_documents_what_the_async_one_does() -> None:
    assert words(sync.open_store) == words(chatkeep.open_store)
    assert "chatkeep.open_store" in (sync.open_store.__doc__ or "")
    with pytest.raises(chatkeep.UnknownSchemeError):
        sync.open_store("nowhere://")


# What it does


def test_a_log_is_written_and_read(store: sync.Store[ChatMessage]) -> None:
    session = store.session("s")
    assert not session.exists()
    appended = session.append(say("a", "b", "c"), batch_id="x")
    assert session.append(say("a", "b", "c"), batch_id="x").added == 0
    assert (appended.seqs, session.count(), texts(session.messages(last=2))) == ((1, 2, 3), 3, ["b", "c"])
    assert texts(session.pop()) == ["c"]
    with pytest.raises(ConflictError):
        session.append(say("d"), expected_tail=appended.tail)
    session.replace(2, ChatMessage.user("B"))
    session.redact(1)
    assert texts(session.messages()) == ["[redacted]", "B"]
    session.replace_prefix(session.messages().end, iter(say("summary")))
    assert (session.verify(), session.repair(), session.truncate_after(0)) == ([], [], 1)
    session.clear()
    assert (session.exists(), session.delete(), session.delete()) == (True, True, False)
    assert (session.name, session.log("aside").name) == ("", "aside")
    assert session.scope == store.scope == Scope()


def test_a_handle_gives_sync_handles(store: sync.Store[ChatMessage]) -> None:
    scope = store.scoped(tenant="acme").scoped(user="alice")
    session = scope.session("s")
    session.append(say("a"))
    session.update(title="Bag", service_session_id="remote")
    session.state.set("language", "no")
    found = scope.find_by_service_id("remote")
    handles: dict[type, list[Any]] = {
        sync.ScopedStore: [scope, store.at(scope.scope)],
        sync.Session: [session, session.fork("branch"), found, session.guarded(ABSENT, 0)],
        sync.Log: [session.log("aside")],
        sync.State: [session.state, scope.state],
        sync.Lease: [session.lease()],
    }
    handles[sync.Session].append(scope.restore(session.snapshot()))
    for kind, made in handles.items():
        assert all(type(handle) is kind for handle in made), kind
    assert scope.find_by_service_id("nobody") is None
    assert store.scoped(user="bob").find_by_service_id("remote") is None
    assert repr(session) == '<Session \'s\' in [null,"acme","alice"], sync>'


def test_sessions_are_listed_restored_and_erased(store: sync.Store[ChatMessage]) -> None:
    scope = store.scoped(user="alice")
    for number in range(2 * AT_ONCE):
        scope.session(f"s{number}").append(say("a"))
    page = scope.list_sessions(limit=3)
    assert len(page) == 3
    assert len(list(store.iter_sessions(below=True))) == 2 * AT_ONCE
    assert list(store.iter_sessions()) == []
    snapshot = scope.session("s0").snapshot()
    session = scope.session("s1")
    session.restore(snapshot)
    info = session.info()
    assert info is not None
    assert (scope.erase().sessions, store.purge(older_than=0).sessions, store.sweep().expired) == (2 * AT_ONCE, 0, 0)


def test_state_is_written_and_read(store: sync.Store[ChatMessage]) -> None:
    state = store.session("s").state
    version = state.set("a", 1, expected=ABSENT)
    with pytest.raises(ConflictError):
        state.set("a", 2, expected=ABSENT)
    state.update({"b": 2, "c": 3})
    state.delete("c")
    entry = state.entry("a")
    assert entry is not None
    assert (entry.value, entry.version) == (1, version)
    assert (state.get("a", type=int), state.get("z", "none"), state.keys(), state.items()) == (
        1,
        "none",
        ["a", "b"],
        {"a": 1, "b": 2},
    )


def test_a_lease_is_held_in_its_block_and_its_session_is_guarded(store: sync.Store[ChatMessage]) -> None:
    session = store.session("s")
    with session.lease(ttl="10s") as guarded:
        guarded.append(say("a"))
        with pytest.raises(LeaseHeldError):
            session.lease().__enter__()
    lease = session.lease()
    with lease as guarded:
        lease.renew()
        assert texts(guarded.messages()) == ["a"]


def test_a_stream_is_fetched_in_parts_and_gives_an_error_where_it_is() -> None:
    class Damaged(ChatMessageCodec):
        def decode(self, data: Any, record: Record) -> ChatMessage:
            message = super().decode(data, record)
            if message.text == "damaged":
                raise ValueError(message.text)
            return message

        decode_many = None  # type: ignore[assignment]  # one by one

    many = [str(number) for number in range(1000)]
    with sync.open_store("memory://", codec=OpenAIChatCodec()) as store:
        session = store.session("s", codec=ChatMessageCodec())
        session.append(say(*many))
        assert texts(list(session.stream())) == many
        assert texts(list(session.stream(after=998))) == many[998:]
        started = session.stream()
        next(started)
        started.close()  # type: ignore[attr-defined]
        session.append(say("damaged"))
        read: list[str] = []
        with pytest.raises(CorruptRecordError):
            read.extend(message.text for message in store.session("s", codec=Damaged()).stream())
        assert read == many


def test_an_iterator_of_messages_may_itself_call_the_store(store: sync.Store[ChatMessage]) -> None:
    session, copy = store.session("s"), store.session("copy")
    session.append(say(*map(str, range(300))))
    copy.append(message for message in session.stream())
    copy.replace_prefix(250, (message for message in session.messages(last=2)))
    assert texts(copy.messages())[:3] == ["298", "299", "250"]
    with pytest.raises(TypeError, match="append takes a list of messages, not str"):
        session.append("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not NoneType"):
        session.append(None)  # type: ignore[arg-type]


def test_an_error_is_that_of_the_async_store_and_is_freed_when_it_was_handled(store: sync.Store[ChatMessage]) -> None:
    gc.disable()
    try:
        try:
            store.session("s").replace(7, ChatMessage.user("x"))
        except chatkeep.MessageNotFoundError as error:
            handled = weakref.ref(error)
        assert handled() is None
    finally:
        gc.enable()


def test_eight_threads_on_one_session_lose_and_mix_nothing(store: sync.Store[ChatMessage]) -> None:
    session, errors = store.session("s"), list[Exception]()

    def write(thread: int) -> None:
        try:
            for turn in range(50):
                session.append(say(f"{thread}.{turn}", f"{thread}.{turn}"))
        except Exception as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = texts(session.messages())
    assert not errors
    assert read[::2] == read[1::2]
    for number in range(8):
        assert [text for text in read[::2] if text.startswith(f"{number}.")] == [
            f"{number}.{turn}" for turn in range(50)
        ]


def test_all_stores_of_a_process_share_one_thread(store: sync.Store[ChatMessage]) -> None:
    with sync.open_store("memory://") as other:
        other.ping()
        store.ping()
        assert [thread.name for thread in threading.enumerate()].count("chatkeep.sync") == 1


# Closing


def test_a_closed_store_is_closed_for_every_handle_and_closing_twice_is_once() -> None:
    store = sync.open_store("memory://")
    session = store.session("s")
    session.append(say("a"))
    stream = session.stream()
    store.close()
    store.close()
    for call in (session.messages, store.ping, store.open, lambda: next(stream), session.lease().__enter__):
        with pytest.raises(StoreClosedError):
            call()


class Closing(MemoryBackend):
    """Counts what is opened and closed."""

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__()
        self.refuses, self.open_, self.closed = refuses, 0, 0

    async def open(self) -> None:
        if self.refuses:
            raise StoreUnavailableError("the server is away")
        self.open_ += 1

    async def close(self) -> None:
        self.closed += 1


def on(backend: MemoryBackend) -> sync.Store[ChatMessage]:
    """A sync store on a backend."""
    options = chatkeep.open_store("memory://").options
    codec, serializer = ChatMessageCodec(), chatkeep.SessionSerializer()
    twin = Store(backend, name="scripted://", options=options, serializer=serializer, codec=codec)
    return sync.Store(twin, Origin(twin, None))


def test_with_closes_a_store_whose_block_fails_and_one_that_cannot_be_opened() -> None:
    def fail(backend: Closing) -> None:
        with on(backend):
            raise KeyError("the block failed")

    backend, away = Closing(), Closing(refuses=True)
    with pytest.raises(KeyError):
        fail(backend)
    with pytest.raises(StoreUnavailableError):
        fail(away)
    assert (backend.open_, backend.closed, away.open_, away.closed) == (1, 1, 0, 1)


# Beside an event loop


def handles(store: sync.Store[ChatMessage]) -> list[Any]:
    """One of each kind."""
    session = store.session("s")
    return [store, store.scoped(user="u"), session, session.log("aside"), session.state, session.lease()]


async def test_every_call_beside_a_running_loop_is_refused_at_once() -> None:
    store = sync.open_store("memory://")
    refused = 0
    for handle in handles(store):
        original = ASYNC[type(handle)]
        for name, method in {**public(original), "__enter__": getattr(original, "__aenter__", None)}.items():
            if not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
                continue
            given = [
                None for each in list(inspect.signature(method).parameters.values())[1:] if each.default is each.empty
            ]
            with pytest.raises(StoreLoopError, match=r"open the store with chatkeep\.open_store"):
                getattr(handle, name)(*given)
            refused += 1
    assert refused > 50
    await asyncio.to_thread(store.session("s").append, say("a"))
    assert await asyncio.to_thread(store.session("s").count) == 1
    await asyncio.to_thread(store.close)


def test_a_codec_or_a_reducer_that_calls_the_store_is_refused_and_not_left_hanging(
    store: sync.Store[ChatMessage],
) -> None:
    session = store.session("s")
    session.append(say("a"))

    def reduce(messages: list[ChatMessage], codec: object) -> list[ChatMessage]:
        return session.messages()

    class Curious(ChatMessageCodec):
        def encode(self, message: ChatMessage) -> Any:
            session.count()
            return super().encode(message)

    with pytest.raises(StoreLoopError):
        session.messages(window=Window(reducers=[reduce]))
    with pytest.raises(StoreLoopError):
        store.session("s", codec=Curious()).append(say("b"))
    assert session.count() == 1


def test_an_exit_in_a_reducer_is_the_callers_and_the_loop_goes_on(store: sync.Store[ChatMessage]) -> None:
    session = store.session("s")
    session.append(say("a"))
    with pytest.raises(SystemExit):
        session.messages(window=Window(reducers=[lambda *_: sys.exit(3)]))
    assert session.count() == 1


# Interrupted


def test_an_interruption_before_a_call_was_sent_leaves_nothing_of_it(
    store: sync.Store[ChatMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("s")
    session.append(say("a"))
    loop = current_loop()
    sent = iter([KeyboardInterrupt])

    class Interrupted:
        def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
            for error in sent:
                raise error
            real.call_soon_threadsafe(callback)

        def is_closed(self) -> bool:
            return False

    real = loop._loop
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_loop", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            session.append(say("b"))
    assert texts(session.messages()) == ["a"]


def test_a_call_that_is_cancelled_before_its_first_step_ends() -> None:
    async def never() -> None:
        raise AssertionError("it was cancelled before")

    async def cancelled_at_once() -> None:
        call.begin()
        call.cancel()

    call = Call(never)
    current_loop().run(cancelled_at_once)
    waiting = threading.Thread(target=call.wait, daemon=True)
    waiting.start()
    waiting.join(20)
    assert call.ended
    assert isinstance(call.error, asyncio.CancelledError)


@pytest.mark.parametrize("kind", ["lease", "store"])
def test_what_was_just_entered_when_the_interruption_came_is_left_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Closing()
    store = on(backend)
    session = store.session("s")
    if kind == "lease":
        store.open()
    waits = iter([True])

    def wait(call: Call[Any]) -> None:
        known(call)
        for _ in waits:
            raise KeyboardInterrupt

    known = Call.wait
    store._origin.run(asyncio.sleep, 0)  # the first call in a process makes one more
    with monkeypatch.context() as patched:
        patched.setattr(Call, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            (session.lease(ttl=1000) if kind == "lease" else store).__enter__()
    if kind == "lease":
        with session.lease():
            pass
        store.close()
    assert (backend.open_, backend.closed) == (1, 1)


# In processes of their own

PRELUDE = '''
import asyncio, os, signal, sys, threading, time, traceback
from chatkeep import ChatMessage, background, plugins
from chatkeep.backend import BackendSpec
from chatkeep.errors import *
from chatkeep.memory import MemoryBackend
from chatkeep.options import StoreOptions
from chatkeep.sync import open_store

signal.signal(signal.SIGINT, signal.default_int_handler)  # which Python leaves out where tests run in the background


class Slow(MemoryBackend):
    """Connected in one process. A commit calls `begun`, takes its time, and counts."""

    pause, done, process, begun = 0.0, 0, None, staticmethod(lambda: None)

    async def open(self):
        assert self.process is None, "it was opened twice"
        self.process = os.getpid()

    async def commit(self, key, write):
        assert self.process == os.getpid(), "the parent's connection is used"
        self.begun()
        await asyncio.sleep(self.pause)
        outcome = await super().commit(key, write)
        self.done += 1
        return outcome


plugins._specs["slow"] = BackendSpec("slow", ("slow",), StoreOptions, lambda *_: Slow(), takes_client=True)


def say(*said):
    return [ChatMessage.user(text) for text in said]


def backend(store):
    return store._twin.backend


def in_a_child(call):
    child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def ended(child):
    assert os.waitpid(child, 0)[1] == 0, "the child has failed"
'''


def run(script: str, *arguments: str) -> str:
    """Run a script in a process of its own, which must end well and say nothing on stderr; what it prints."""
    # A fork beside other threads is a DeprecationWarning from Python 3.12 on.
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c"]
    done = subprocess.run(
        [*command, PRELUDE + script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
signals = pytest.mark.skipif(not hasattr(os, "fork"), reason="here a signal does not interrupt a thread that waits")


@signals
def test_a_signal_cancels_a_write_which_is_settled_before_the_exception_goes_on() -> None:
    run(
        """
class SoftTimeLimitExceeded(Exception):
    pass

def too_long(*_):
    raise SoftTimeLimitExceeded

signal.signal(signal.SIGUSR1, too_long)
store = open_store("slow://")
session = store.session("s")
backend(store).pause = 0.1
cases = [
    (signal.SIGINT, 1, KeyboardInterrupt),
    (signal.SIGUSR1, 1, SoftTimeLimitExceeded),
    (signal.SIGINT, 3, KeyboardInterrupt),
]
for number, (sent, times, expected) in enumerate(cases):
    def interrupt():
        for time in range(times):
            asyncio.get_running_loop().call_later(0.02 * time, os.kill, os.getpid(), sent)

    backend(store).begun = interrupt
    try:
        session.append(say("a"))
    except expected as error:
        assert error.__cause__ is None
        assert backend(store).done == number + 1, "the exception did not wait for the write"
    else:
        raise AssertionError("it was not interrupted")
backend(store).begun = lambda: None
assert (session.append(say("b")).added, session.count()) == (1, 4)
"""
    )


TWO_SIGNALS = """
class First(Exception): pass
class Second(Exception): pass

def raising(error):
    def handler(*_): raise error
    return handler

signal.signal(signal.SIGUSR1, raising(First))
signal.signal(signal.SIGUSR2, raising(Second))
store = open_store("memory://")
session = store.session("s")
session.append([ChatMessage.user("one")])
commit = store._twin.backend.commit

async def slow(key, write):
    await asyncio.sleep(1)
    return await commit(key, write)

store._twin.backend.commit = slow

def both():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)

threading.Thread(target=both).start()
try:
    session.append([ChatMessage.user("two")])
except (First, Second):
    print("settled", session.count())
"""


def test_of_two_signals_at_one_instant_neither_cuts_the_settling_short() -> None:
    assert run(TWO_SIGNALS) == "settled 2\n"


DROPPED = """
import gc

def leave_one():
    store = open_store(sys.argv[1])
    store.session("s").append([ChatMessage.user("x")])
    return store.session("s")

session = leave_one()
for _ in range(3):
    leave_one()
gc.collect()
assert session.count() == 4, session.count()
del session
gc.collect()
deadline = time.monotonic() + 20
while background.current_loop().stores or background.current_loop()._closings:
    assert time.monotonic() < deadline, "a store that nobody can use is not closed"
    time.sleep(0.01)
print("closed")
"""


def test_a_store_that_nobody_can_use_any_more_is_closed() -> None:
    assert run(DROPPED, "memory://dropped") == "closed\n"


@signals
def test_a_write_that_cannot_be_settled_is_unknown_and_the_interruption_says_so() -> None:
    run(
        """
store = open_store("slow://", timeout=0.2)
backend(store).pause = 1000
backend(store).begun = lambda: os.kill(os.getpid(), signal.SIGINT)
try:
    store.session("s").append(say("a"))
except KeyboardInterrupt as error:
    assert isinstance(error.__cause__, OutcomeUnknownError)
else:
    raise AssertionError("it was not interrupted")
"""
    )


@forks
def test_a_forked_child_uses_stores_that_the_parent_had_and_had_not_connected_with_their_handles() -> None:
    run(
        """
fresh, memory, connected, closed = (open_store(url) for url in ("slow://", "memory://", "slow://", "slow://"))
own, unused = (open_store("slow://", client=object()) for _ in range(2))
handles = [store.session("s") for store in (fresh, memory, connected, own, unused)]
state, stream = connected.session("s").state, memory.session("s").stream()
for store in (memory, connected, own, closed):
    store.session("s").append(say("parent"))
closed.close()

def child():
    first = threading.Thread(target=handles[0].append, args=(say("child"),))
    first.start()
    first.join(20)
    assert not first.is_alive(), "the first call hangs in another thread"
    counts = [session.append(say("child")).added and session.count() for session in (*handles[:3], handles[4])]
    assert counts == [2, 2, 1, 1], counts
    state.set("a", 1)
    assert [message.text for message in stream] == ["parent", "child"]
    try:
        handles[3].append(say("child"))
    except StoreLoopError as error:
        assert "after the fork" in str(error)
    else:
        raise AssertionError("the caller's client was used")
    try:
        closed.session("s").count()
    except StoreClosedError:
        closed.close()
    ended(in_a_child(lambda: connected.session("s").append(say("grandchild"))))
    connected.close()

ended(in_a_child(child))
assert [handles[number].append(say("parent")).added and handles[number].count() for number in range(4)] == [1, 2, 2, 2]
"""
    )


@forks
def test_twenty_forks_of_a_parent_with_busy_threads_hang_nowhere() -> None:
    run(
        """
store, connected = open_store("memory://"), open_store("slow://")

def write(number):
    while True:
        for each in (store, connected):
            session = each.session(str(number))
            session.append(say("parent"))
            session.messages(last=3)

def child():
    for each in (store, connected, open_store("memory://")):
        each.session("0").append(say("child"))
        assert each.session("0").messages(last=1)[0].text == "child"

for number in range(4):
    threading.Thread(target=write, args=(number,), daemon=True).start()
for _ in range(20):
    ended(in_a_child(child))
before = store.session("0").count()
while store.session("0").count() == before:
    time.sleep(0.001)
"""
    )


@forks
def test_a_call_during_which_a_signal_handler_forks_has_its_outcome_in_the_parent_alone() -> None:
    run(
        """
child = None

def fork(*_):
    global child
    child = os.fork()

signal.signal(signal.SIGUSR1, fork)
store = open_store("slow://")
backend(store).begun = lambda: os.kill(os.getpid(), signal.SIGUSR1)
backend(store).pause = 0.1
try:
    added = store.session("s").append(say("a")).added
except StoreLoopError as error:
    os._exit(0 if child == 0 and "outcome is its parent's" in str(error) else 1)
if child == 0:
    os._exit(2)
assert added == 1
ended(child)
"""
    )


@forks
def test_a_fork_waits_for_the_loop_to_end_its_step_but_neither_for_itself_nor_for_ever() -> None:
    run(
        """
from chatkeep import Window

store = open_store("memory://")
session = store.session("s")
session.append(say("a"))

def read(reduce):
    session.messages(window=Window(reducers=[lambda messages, codec: reduce() or messages]))

def fork_while(reduce, child):
    reading = threading.Thread(target=read, args=(reduce,))
    reading.start()
    in_step.wait()
    ended(in_a_child(child))
    go_on.set()
    reading.join()
    in_step.clear()

def short():
    in_step.set()
    time.sleep(0.1)
    in_step.clear()

def long():
    in_step.set()
    go_on.wait()

def between_two_steps():
    assert not in_step.is_set()

in_step, go_on = threading.Event(), threading.Event()
fork_while(short, between_two_steps)
go_on.clear()
background.PATIENCE = 0.05
fork_while(long, lambda: open_store("memory://").session("s").append(say("a")))
background.PATIENCE = 1000
read(lambda: ended(in_a_child(lambda: None)))
assert session.count() == 1
"""
    )


POOLS = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from chatkeep import ChatMessage
from chatkeep.sync import open_store

store = open_store("memory://")


def task(number):
    session = store.session("s")
    session.append([ChatMessage.user(str(number))])
    return session.count() > 0, os.getpid()


if __name__ == "__main__":
    store.session("s").append([ChatMessage.user("parent")])
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            answers = list(pool.map(task, range(3)))
        assert all(counted and process != os.getpid() for counted, process in answers), answers
        with context.Pool(1) as pool:
            assert all(counted for counted, _ in pool.map(task, range(3)))
    assert store.session("s").count() == 1
"""


def test_pools_of_processes_work_with_a_store_of_the_module(tmp_path: Any) -> None:
    (tmp_path / "pools.py").write_text(POOLS, encoding="utf-8")
    methods = ["fork", "spawn"] if hasattr(os, "fork") else ["spawn"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "pools.py", *methods],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_closes_nothing_ends_says_nothing_and_its_stores_are_closed_as_far_as_they_can_be() -> None:
    printed = run(
        """
class Told(Slow):
    async def close(self):
        await asyncio.sleep(0)
        print("closed", flush=True)

class Broken(Slow):
    async def close(self):
        raise StoreUnavailableError("the server is away")

plugins._specs["told"] = BackendSpec("told", ("told",), StoreOptions, lambda *_: Told())
plugins._specs["broken"] = BackendSpec("broken", ("broken",), StoreOptions, lambda *_: Broken())
store, unused, broken = open_store("told://"), open_store("told://"), open_store("broken://")
broken.open()
store.session("s").append(say("a"))
stream = store.session("s").stream()
next(stream)
"""
    )
    assert printed == "closed\n"


def test_a_script_whose_store_has_looked_up_a_name_ends_and_says_nothing() -> None:
    printed = run(
        """
class Remote(Slow):
    async def open(self):
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 1)

    async def close(self):
        await asyncio.sleep(0)
        print("closed", flush=True)

plugins._specs["remote"] = BackendSpec("remote", ("remote",), StoreOptions, lambda *_: Remote())
store = open_store("remote://")
store.open()
"""
    )
    assert printed == "closed\n"


def test_a_script_ends_quietly_while_daemon_threads_use_its_stores_and_handlers_come_late() -> None:
    printed = run(
        """
import atexit, importlib

# What `import chatkeep.sync` would have registered after this handler.
atexit.unregister(background._end)

def late():
    try:
        store.session("s").count()
    except StoreClosedError as error:
        print(str(error)[:21])

atexit.register(late)
atexit.register(background._end)
atexit.register(lambda: print(store.session("s").append(say("in time")).added))
store, slow = open_store("memory://"), open_store("slow://")
backend(slow).pause = 0.01

def use(store):
    while True:
        store.session("s").append(say("a"))

for each in (store, slow) * 3:
    threading.Thread(target=use, args=(each,), daemon=True).start()
time.sleep(0.1)
"""
    )
    assert printed == "1\nthe process is ending\n"


@pytest.mark.parametrize("stuck", ["a close", "the loop"])
def test_neither_a_close_nor_a_loop_that_is_stuck_keeps_the_process(stuck: str) -> None:
    run(
        """
background.PATIENCE = 0.1

class Stuck(Slow):
    async def close(self):
        await asyncio.Event().wait()

plugins._specs["stuck"] = BackendSpec("stuck", ("stuck",), StoreOptions, lambda *_: Stuck())
store = open_store("stuck://")
store.session("s").append(say("a"))
if sys.argv[1] == "the loop":
    backend(store).begun = lambda: time.sleep(1000)
    threading.Thread(target=store.session("s").append, args=(say("b"),), daemon=True).start()
    time.sleep(0.1)
""",
        stuck,
    )


def test_importing_chatkeep_begins_and_imports_nothing_of_it() -> None:
    run(
        """
import subprocess
code = "import sys, chatkeep; sys.exit(any(name in sys.modules for name in ('chatkeep.sync', 'chatkeep.background')))"
assert subprocess.run([sys.executable, "-c", code]).returncode == 0
store = open_store("memory://").session("s")
assert threading.active_count() == 1
store.exists()
assert threading.active_count() == 2
"""
    )
