"""What the contract's tests let other processes do: a program that takes jobs from its standard input.

A job is one line of JSON: ``{"job": name, "url": …, "options": {…}, …}``. What it reports, and at last its result or
what it died of, are lines on the standard output: ``{"event": …}``, ``{"result": …}``, ``{"failed": …}``. With
``"stoppable": true`` it goes on until a further line arrives. With ``"fork": path`` it runs in a forked child, to be
killed: its lines go into the file `path`, and the answer is ``{"pid": …}``; ``{"wait": pid}`` waits for its end.

It imports nothing of the tests, so that it starts quickly: run it by its path, with ``python -P``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from chatkeep import ABSENT, ChatMessage, ConflictError, LeaseHeldError, Session, Store, open_store

Job = Callable[..., Awaitable[Any]]
JOBS: dict[str, Job] = {}
stopped = threading.Event()


def job(function: Job) -> Job:
    """Let the other side ask for it by its name. It is called with a store and the job's further fields."""
    JOBS[function.__name__] = function
    return function


def report(**line: Any) -> None:
    """One line in one write, which a reader sees whole whatever becomes of this process."""
    os.write(1, (json.dumps(line) + "\n").encode())


def batch(name: str, size: int, *, ids: bool = False) -> list[ChatMessage]:
    """A turn that says of each message which batch it is of, its place there, and how many there are."""
    texts = [f"{name}/{place}/{size}" for place in range(size)]
    names = texts if ids else [None] * size
    first = ChatMessage.user(texts[0], id=names[0])
    return [first, *(ChatMessage.assistant(text, id=each) for text, each in zip(texts[1:], names[1:], strict=True))]


# Together on one session


@job
async def append(
    store: Store[ChatMessage], *, session: str, writers: list[str], batches: int, ids: bool = False
) -> dict[str, list[int]]:
    """Several writers at once; where each batch went."""
    places: dict[str, list[int]] = {}

    async def write(writer: str) -> None:
        for number in range(batches):
            name = f"{writer}.{number}"
            appended = await store.session(session).append(batch(name, 1 + number % 4, ids=ids))
            places[name] = list(appended.seqs)

    await asyncio.gather(*map(write, writers))
    return places


@job
async def watch(store: Store[ChatMessage], *, session: str) -> list[tuple[int, list[tuple[int, str]]]]:
    """What reading gave, until told to stop: how much of the former reading it begins with, and what it goes on with.

    Each entry differs from the one before.
    """
    await store.session(session).exists()
    report(event="reading")
    found: list[tuple[int, str]] = []
    changes: list[tuple[int, list[tuple[int, str]]]] = []
    while True:
        last = stopped.is_set()
        history = await store.session(session).messages()
        assert history.tail.seq == (history.seqs[-1] if history else 0), "messages and tail are of two instants"
        before, found = found, [(seq, message.text) for seq, message in zip(history.seqs, history, strict=True)]
        if found != before:
            same = next((at for at, (one, other) in enumerate(zip(before, found, strict=False)) if one != other), None)
            same = min(len(before), len(found)) if same is None else same
            changes.append((same, found[same:]))
        if last:
            return changes


@job
async def compact(store: Store[ChatMessage], *, session: str) -> int:
    """Put a summary in the place of all but the newest messages, again and again until told to stop; how often."""
    done = 0
    while not stopped.is_set():
        done += await summarise(store.session(session))
    return done


async def summarise(session: Session[ChatMessage]) -> bool:
    """One summary, which counts by writer the batches that it stands for; whether nobody else was first."""
    history = await session.messages()
    starts = [place for place, message in enumerate(history) if message.role == "user"]
    if len(starts) < 3:
        await asyncio.sleep(0.001)
        return False
    cut = starts[-2]  # whole batches: nobody can tell half of one from a torn one
    counts: dict[str, int] = {}
    for message in history[:cut]:
        if message.role == "system":
            for writer, number in json.loads(message.text).items():
                counts[writer] = counts.get(writer, 0) + number
        elif message.role == "user":
            writer = message.text.rpartition(".")[0]
            counts[writer] = counts.get(writer, 0) + 1
    upto = history.end._replace(seq=history.seqs[cut - 1])
    try:
        await session.replace_prefix(upto, [ChatMessage.system(json.dumps(counts))])
    except ConflictError:
        return False
    return True


@job
async def pop(store: Store[ChatMessage], *, session: str) -> list[str]:
    """Everything that it can get, one by one."""
    got: list[str] = []
    while popped := await store.session(session).pop():
        got += [message.text for message in popped]
    return got


@job
async def append_on_tail(store: Store[ChatMessage], *, session: str, writer: str, batches: int) -> int:
    """Append only where nobody else has meanwhile, and read again otherwise; how often somebody had."""
    refused = 0
    for number in range(batches):
        while True:
            history = await store.session(session).messages()
            text = json.dumps([f"{writer}.{number}", len(history)])
            try:
                await store.session(session).append([ChatMessage.user(text)], expected_tail=history.tail)
                break
            except ConflictError:
                refused += 1
    return refused


@job
async def add_up(store: Store[ChatMessage], *, session: str, key: str, times: int) -> None:
    """Raise a number, each time on the version that was read, and set keys of one's own besides."""
    state = store.session(session).state
    for number in range(times):
        await state.set(f"{os.getpid()}.{number}", number)
        while True:
            entry = await state.entry(key)
            try:
                value, version = (entry.value, entry.version) if entry else (0, ABSENT)
                await state.set(key, value + 1, expected=version)
                break
            except ConflictError:
                continue


@job
async def take_turns(store: Store[ChatMessage], *, session: str, times: int) -> None:
    """Enter the session's lease and leave it, with a message of each under its guard."""
    for number in range(times):
        while True:
            try:
                async with store.session(session).lease(ttl=30, wait=10) as guarded:
                    await guarded.append([ChatMessage.user(f"{os.getpid()}.{number} in")])
                    await asyncio.sleep(0)
                    await guarded.append([ChatMessage.assistant(f"{os.getpid()}.{number} out")])
                break
            except LeaseHeldError:
                continue


@job
async def change(store: Store[ChatMessage], *, session: str) -> None:
    """Something of everything that can be written."""
    view = store.session(session)
    await view.append(batch("added", 2))
    await view.log("beside").append(batch("beside", 1))
    await view.state.set("key", "new")
    await view.update(title="new", service_session_id="new")
    await store.session("further").append(batch("further", 1))


@job
async def delete(store: Store[ChatMessage], *, session: str) -> None:
    """The whole session."""
    await store.session(session).delete()


@job
async def begin(store: Store[ChatMessage], *, scope: dict[str, str], writer: str) -> None:
    """Begin sessions, each with one write, and report each that is acknowledged, until told to stop."""
    for number in count():
        if stopped.is_set():
            return
        session = store.scoped(**scope).session(f"{writer}.{number}")
        if number % 2:
            await session.append(batch("first", 2))
        else:
            await session.state.set("first", number)
        report(event=session.id)


# To be killed


@job
async def run_until_killed(
    store: Store[ChatMessage], *, trimming: dict[str, Any], scope: dict[str, str], writer: str, seed: int
) -> None:
    """Append, set state, trim and compact at random; each step is reported before it begins, and when it is done.

    `trimming` opens a store on the same database that trims.
    """
    chance = random.Random(seed)  # noqa: S311 - the same steps for the same seed
    view = store.scoped(**scope)
    sessions = {kind: view.session(kind) for kind in ("plain", "compacted")}
    sessions["trimmed"] = open_store(**trimming).scoped(**scope).session("trimmed")

    async def work(lane: str) -> None:
        numbers = {kind: count() for kind in (*sessions, "state")}
        while True:
            step = chance.choice(("plain", "trimmed", "compacted", "state", "summary"))
            if step == "summary":
                await summarise(sessions["compacted"])
                continue
            number = next(numbers[step])
            if step == "state":
                report(trying=step, name=lane, value=number)
                await sessions["plain"].state.update({f"{lane}.one": number, f"{lane}.other": number})
                report(done=step, name=lane, value=number)
                continue
            messages = batch(f"{lane}.{number}", chance.randint(1, 5))
            report(trying=step, name=f"{lane}.{number}", size=len(messages))
            messages[-1].data["metadata"] = {"padding": "x" * chance.choice((0, 4000))}
            appended = await sessions[step].append(messages)
            report(done=step, name=f"{lane}.{number}", seqs=list(appended.seqs))

    await asyncio.gather(*(work(f"{writer}-{lane}") for lane in range(3)))


# Taking jobs


async def perform(name: str, url: str, options: dict[str, Any], at: float | None, fields: dict[str, Any]) -> Any:
    """Open a store of one's own, at the same instant as others where `at` says when, and do the job."""
    store = open_store(url, **options)
    while at is not None and time.time() < at:
        pass
    async with store:
        return await JOBS[name](store, **fields)


def run(name: str, url: str, options: dict[str, Any], at: float | None = None, **fields: Any) -> None:
    """Do the job and report what came of it."""
    try:
        report(result=asyncio.run(perform(name, url, options, at, fields)))
    except BaseException:  # noqa: BLE001 - reported to whoever asked
        report(failed=traceback.format_exc())


def run_forked(path: str, **request: Any) -> int:
    """Do the job in a forked child, which never returns from here; its process number."""
    if pid := os.fork():
        return pid
    try:
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
        run(**request)
    finally:
        os._exit(0)


def main() -> None:
    """Take jobs until the standard input ends."""
    report(ready=True)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "wait" in request:
            os.waitpid(request["wait"], 0)
            report(ended=request["wait"])
            continue
        request["name"] = request.pop("job")
        if path := request.pop("fork", ""):
            report(pid=run_forked(path, **request))
            continue
        stoppable = request.pop("stoppable", False)
        stopped.clear()
        thread = threading.Thread(target=run, kwargs=request)
        thread.start()
        if stoppable:
            sys.stdin.readline()
            stopped.set()
        thread.join()


if __name__ == "__main__":
    main()
