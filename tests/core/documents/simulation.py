"""Processes that use one document store at once, each step of theirs chosen by chance, with crashes and lost answers.

A schedule is one number: it decides who goes on, what is asked for, who dies when, and which answer is lost. Every
change of a head that is made is noted in the order in which the store made it, and replayed on the memory backend, the
model. What callers were told must fit that one history, each answer within the time of its call.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chatkeep.backend import Backend
from chatkeep.documents import GRACE, Change, Document, DocumentBackend, Limits, Part, UncertainError
from chatkeep.documents.inmemory import Documents, InMemoryDriver
from chatkeep.documents.sessions import id_of
from chatkeep.documents.shelf import clear_garbage
from chatkeep.documents.sweeping import Sweep
from chatkeep.errors import ChatkeepError, OutcomeUnknownError, StoreError
from chatkeep.memory import MemoryBackend
from chatkeep.records import (
    ABSENT,
    Expiry,
    Keep,
    Key,
    LeaseOp,
    Outcome,
    Record,
    Replace,
    Rewrite,
    Scope,
    Select,
    Span,
    StateOp,
    Write,
)

PATIENCE = 90.0
"""Seconds for which a database leaves a head that has expired: longer than a write takes here."""
TIGHT = Limits(
    inline_records=2,
    inline_bytes=600,
    head_bytes=700,
    leaf_records=2,
    leaf_bytes=600,
    body_bytes=40,
    part_bytes=200,
    state_bytes=120,
    refs=2,
    recent=2,
    patience=PATIENCE,
    garbage=2,
)
KEYS = (Key(Scope("a"), "s"), Key(Scope("a"), "t"))
LOGS = ("", "aside")
TTLS = (20.0, 90.0)


class UnreachableError(Exception):
    """The driver's own error: nothing was written by this operation."""


class Pause:
    """Where a process waits: for its turn, before it does `act`, if it is given."""

    def __init__(self, act: Callable[[], Any] | None = None) -> None:
        self.act = act

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


@dataclass
class Call:
    """What one process asked for, and what came of it."""

    process: int
    name: str
    key: Key
    ask: Any
    began: int
    """How many changes the store had made by then."""
    ended: int = -1
    times: list[float] = field(default_factory=list)
    """What the clock said whenever it was asked."""
    answer: Any = None
    error: BaseException | None = None
    died: bool = False


@dataclass
class Made:
    """A change of a head that the store has made."""

    key: Key
    call: Call
    now: float
    life: str | None
    ends: bool


class SimulatedDriver(InMemoryDriver):
    driver_errors = (UnreachableError,)

    def __init__(self, simulation: Simulation, process: int) -> None:
        super().__init__(simulation.documents, limits=TIGHT)
        self.simulation = simulation
        self.process = process
        self.clock = self._time

    def _time(self) -> float:
        now = self.simulation.now
        self.simulation.calls_of[self.process].times.append(now)
        return now

    async def step(self, name: str) -> None:
        await Pause()

    async def _do(self, name: str, act: Callable[[], Any]) -> Any:
        simulation, done = self.simulation, False

        def once() -> Any:
            nonlocal done
            done = True
            return act()

        await Pause(once if name in CHANGES else None)
        if done:
            raise AssertionError("it was done already")
        fate = simulation.fate() if name in CHANGES or name in READS else "answered"
        if fate == "answered":
            return act()
        if name in READS:
            raise UnreachableError
        if fate == "unanswered":
            act()
        elif fate == "late":
            simulation.late.append(act)
        raise UncertainError(name) if name in HEADS else UnreachableError

    def _put(self, id: bytes, life: str, parts: Sequence[Part], until: float | None) -> None:
        self.clock = lambda: self.simulation.now  # the database's own, which is not asked for
        super()._put(id, life, parts, until)
        self.clock = self._time

    # What is noted

    def _noted(self, id: bytes, before: Document | None, after: Document, call: Call, now: float) -> None:
        if before is not None and before["life"] is None and after["life"] is None:
            return
        key = next(key for key in ALL_KEYS if id_of(key) == id)
        simulation = self.simulation
        simulation.made.append(Made(key, call, now, after["life"], after["life"] is None))

    async def insert(self, id: bytes, head: Document) -> bool:
        call, now = self._now()

        def act() -> bool:
            if not self._insert(id, head):
                return False
            self._noted(id, None, head, call, now)
            return True

        return bool(await self._do("insert", act))

    async def swap(self, id: bytes, version: bytes, change: Change) -> bool:
        call, now = self._now()

        def act() -> bool:
            before = self.documents.heads.get(id)
            if not self._swap(id, version, change):
                return False
            self._noted(id, before, change.document, call, now)
            return True

        return bool(await self._do("swap", act))

    def _now(self) -> tuple[Call, float]:
        call = self.simulation.calls_of[self.process]
        return call, call.times[-1] if call.times else self.simulation.now


HEADS = ("insert", "swap")
CHANGES = (*HEADS, "put", "drop", "drop_life", "extend", "settle", "remove")
READS = ("find", "get", "holding")
ALL_KEYS = (*KEYS, Key(Scope("a"), ""))


class WrongError(AssertionError):
    """What somebody was told, or what is stored, is not what the one history says."""


class Simulation:
    """One schedule."""

    def __init__(
        self, seed: int, *, processes: int = 3, calls: int = 7, backend: type[DocumentBackend] = DocumentBackend
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.documents = Documents()
        self.now = 1000.0
        self.late: list[Callable[[], Any]] = []
        self.made: list[Made] = []
        self.calls: list[Call] = []
        self.calls_of: dict[int, Call] = {}
        self.backend = backend
        self.ttl = self.chance.choice(TTLS) if self.chance.random() < 0.5 else None
        self.mixed = self.ttl is not None and seed % 3 == 0
        """Whether some writers know of no ttl."""
        self.trouble = self.chance.choice([0.0, 0.02, 0.1])
        self.crowded = self.chance.random() < 0.6
        self._left = dict.fromkeys(range(processes), calls)
        self._tokens = 0
        self._known: dict[tuple[int, Key, str], Outcome] = {}
        self._versions: list[str] = [ABSENT]

    def fate(self) -> str:
        if self.chance.random() >= self.trouble:
            return "answered"
        return self.chance.choice(["never", "unanswered", "late"])

    # What is asked for

    def _record(self) -> Record:
        chance = self.chance
        id = chance.choice("abcdef") if chance.random() < 0.5 else None
        payload = b"%d" % chance.randrange(4) * chance.choice([1, 1, 1, 60, 500])
        text = "x" * 50 if chance.random() < 0.1 else None
        return Record(0, id, "user", chance.random() < 0.5, "chat/1", None, text, payload)

    def _records(self, most: int) -> list[Record]:
        """With different ids, as the store sees to where that is needed."""
        found: dict[object, Record] = {}
        for place in range(self.chance.randint(1, most)):
            record = self._record()
            found[record.id or place] = record
        return list(found.values())

    def _expiry(self) -> Expiry:
        return Expiry(None if self.mixed and self.chance.random() < 0.5 else self.ttl)

    def _write(self, process: int, key: Key) -> Write:
        chance = self.chance
        log = chance.choice(LOGS) if chance.random() < 0.3 else ""
        known = self._known.get((process, key, log), Outcome(ABSENT))
        seq = chance.randint(0, known.log.last + 1)
        self._tokens += 1
        token = self._tokens.to_bytes(16, "big")
        write = Write(token, log, expiry=self._expiry())
        kind = chance.choices(
            ["append", "truncate", "replace", "rewrite", "state", "meta", "lease", "delete", "touch"],
            [12, 3, 3, 3, 4, 1, 1, 2, 1],
        )[0]
        if known.life and chance.random() < 0.3:
            write = write._replace(life=known.life)
        if known.fence and chance.random() < 0.5:
            write = write._replace(fence=known.fence)
        if chance.random() < 0.2:
            write = write._replace(expected_tail=known.log.tail)
        if chance.random() < 0.2 and kind in ("replace", "truncate"):
            write = write._replace(expected_rewrite=known.log.rewrite)
        if kind == "append":
            keep = Keep(chance.choice([None, None, 0, 1, 3, 4]), None, chance.choice([1000, 1000, 2, 0]))
            mode = chance.choice(["keep", "keep", "replace", "error", "strict"])
            if chance.random() < 0.2:
                write = write._replace(token=b"batch %d" % chance.randrange(3), batch=True)
            return write._replace(append=self._records(4), keep=keep, on_conflict=mode)
        if kind == "truncate":
            return write._replace(truncate_after=seq, must_exist=True)
        if kind == "replace":
            records = self._records(2) if chance.random() < 0.6 else []
            return write._replace(replace=Replace(chance.choice([seq, seq, None]), records), must_exist=True)
        if kind == "rewrite":
            return write._replace(rewrite=Rewrite(self._record()._replace(seq=seq)))
        if kind == "state":
            keys = chance.sample("klmnop", chance.randint(1, 3))
            return write._replace(
                state=[self._operation(name) for name in keys], log="", expected_tail=None, expected_rewrite=None
            )
        write = write._replace(log="", expected_tail=None)
        if kind == "meta":
            return write._replace(meta={"title": str(chance.randrange(9))})
        if kind == "lease":
            return write._replace(lease=LeaseOp(f"owner {process}", chance.choice([0.0, 5.0])))
        return write._replace(must_exist=True, delete=kind == "delete", expiry=self._expiry())

    def _operation(self, key: str) -> StateOp:
        chance = self.chance
        value = None if chance.random() < 0.2 else b"%d" % chance.randrange(9) * chance.choice([1, 1, 30, 300])
        expected = chance.choice(self._versions[-4:]) if chance.random() < 0.3 else None
        return StateOp(key, "json/1", value, expected)

    def _call(self, process: int, backend: DocumentBackend) -> tuple[Call, Awaitable[Any]]:
        chance = self.chance
        key = KEYS[0] if self.crowded or chance.random() < 0.7 else KEYS[1]
        kind = chance.choices(["commit", "read", "state", "head", "remove", "sweep"], [12, 5, 2, 1, 0.5, 0.5])[0]
        if kind == "commit":
            write = self._write(process, key)
            return Call(process, kind, key, write, len(self.made)), backend.commit(key, write)
        if kind == "read":
            span = Span(
                after=chance.choice([None, None, chance.randint(0, 9)]),
                before=chance.choice([None, None, chance.randint(1, 12)]),
                limit=chance.choice([None, None, 1, 3]),
                newest=chance.random() < 0.5,
            )
            log = chance.choice(LOGS) if chance.random() < 0.3 else ""
            return Call(process, kind, key, (log, span), len(self.made)), backend.read(key, log, span)
        if kind == "state":
            select = Select(prefix=chance.choice(["", "", "l"]), limit=chance.choice([None, 2]))
            return Call(process, kind, key, select, len(self.made)), backend.state(key, select)
        if kind == "head":
            return Call(process, kind, key, None, len(self.made)), backend.head(key)
        if kind == "remove":
            return Call(process, kind, key, None, len(self.made)), backend.remove(Scope("a"))
        return Call(process, kind, key, None, len(self.made)), backend.sweep()

    # Who goes on

    async def _noting(self, call: Call, work: Awaitable[Any]) -> None:
        call.times.append(self.now)
        try:
            call.answer = await work
        except (ChatkeepError, ValueError, UnreachableError) as error:
            call.error = error
        call.times.append(self.now)
        call.ended = len(self.made)
        if call.name == "commit" and call.error is None:
            self._known[call.process, call.key, call.ask.log] = call.answer
            self._versions += [version for version in call.answer.versions if version]

    def run(self) -> None:
        """Everything, to its end, and then the check."""
        chance = self.chance
        running: dict[int, tuple[Call, Coroutine[Any, Any, None], Pause | None]] = {}
        backends = {process: self.backend(SimulatedDriver(self, process)) for process in self._left}
        while running or any(self._left.values()):
            if not running and not self.late and chance.random() < 0.1:
                self.now += chance.choice([GRACE * 1.1, 60.0])
            if chance.random() < 0.1:
                self.now += chance.choice([0.5, 3.0, 9.0])
            if self.late and chance.random() < 0.2:
                self.late.pop(chance.randrange(len(self.late)))()
            if chance.random() < 0.05:
                self._reap()
            process = chance.choice([each for each in self._left if each in running or self._left[each]])
            if process not in running:
                self._left[process] -= 1
                call, work = self._call(process, backends[process])
                self.calls.append(call)
                self.calls_of[process] = call
                running[process] = call, self._noting(call, work), None
            call, steps, pause = running[process]
            if pause is not None and chance.random() < self.trouble / 4:
                self._kill(steps, pause)
                call.died, call.ended = True, len(self.made)
                backends[process] = self.backend(SimulatedDriver(self, process))
                del running[process]
                continue
            try:
                pause = steps.send(None)
            except StopIteration:
                del running[process]
            else:
                running[process] = call, steps, pause
        while self.late:
            self.late.pop()()
        self._check()

    def _kill(self, steps: Coroutine[Any, Any, None], pause: Pause) -> None:
        """The process is gone; what it was about to ask for may have been sent, and be done at any time."""
        if pause.act is not None and self.chance.random() < 0.5:
            self.late.append(pause.act)
        steps.close()

    def _reap(self) -> None:
        """What a database deletes by itself."""
        heads, parts = self.documents.heads, self.documents.parts
        over = self.now - PATIENCE
        for id in [id for id, head in heads.items() if head["reap"] is not None and head["reap"] <= over]:
            del heads[id]
        for name in [name for name, kept in parts.items() if kept.until is not None and kept.until <= self.now]:
            del parts[name]

    # What was told

    def _check(self) -> None:
        asyncio.run(Judge(self).judge())


class Judge:
    """Replays the changes on the model, and holds every answer against what the model says within the call's time."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.model = MemoryBackend()
        self.now = 0.0
        self.model.clock = lambda: self.now
        self.made_by: dict[int, int] = {}

    def wrong(self, call: Call | None, reason: str) -> WrongError:
        return WrongError(f"schedule {self.simulation.seed}: {reason}: {call}")

    async def judge(self) -> None:
        simulation = self.simulation
        waiting = [call for call in simulation.calls if not call.died]
        fits = {id(call): False for call in waiting}
        for place in range(len(simulation.made) + 1):
            for call in waiting:
                if call.began <= place <= call.ended and not fits[id(call)]:
                    fits[id(call)] = await self._fits(call)
            if place < len(simulation.made):
                await self._replay(place, simulation.made[place])
        for call in waiting:
            times = self.made_by.get(id(call), 0)
            if isinstance(call.error, OutcomeUnknownError) or call.name in ("remove", "sweep"):
                if isinstance(call.error, StoreError) and not isinstance(call.error, OutcomeUnknownError):
                    raise self.wrong(call, "it failed")
                continue
            if call.error is not None and times:
                raise self.wrong(call, "it was refused, and done all the same")
            if times == 0 and not isinstance(call.error, UnreachableError) and not fits[id(call)]:
                raise self.wrong(call, "the answer fits no instant of its call")
        await self._look_again()

    async def _replay(self, place: int, made: Made) -> None:
        call, model = made.call, self.model
        self.now = made.now
        if call.name != "commit":
            if made.ends:
                model.held.pop(made.key, None)
            return
        self.made_by[id(call)] = self.made_by.get(id(call), 0) + 1
        if self.made_by[id(call)] > 1:
            raise self.wrong(call, "it was stored twice")
        model.new_life = lambda: made.life or ABSENT
        try:
            outcome = await model.commit(made.key, call.ask)
        except (ChatkeepError, ValueError) as error:
            raise self.wrong(call, f"it was stored against {error!r}") from error
        if call.died or isinstance(call.error, OutcomeUnknownError):
            return
        if not call.began <= place < call.ended:
            raise self.wrong(call, f"it was stored outside of its time, as change {place}")
        if call.error is None and _plain(call.answer) != _plain(outcome):
            raise self.wrong(call, f"it was told another outcome than {outcome}")

    async def _fits(self, call: Call) -> bool:
        """Whether the model would answer like that now, by a clock as it was during the call."""
        if call.name in ("remove", "sweep") or isinstance(call.error, (OutcomeUnknownError, UnreachableError)):
            return True
        for now in dict.fromkeys(call.times):
            self.now = now
            if await self._fits_now(call):
                return True
        return False

    async def _fits_now(self, call: Call) -> bool:
        model, answer = self.model, call.answer
        if call.name == "commit":
            trial = MemoryBackend()
            trial.clock, trial.held = model.clock, copy.deepcopy(model.held)
            try:
                outcome = await trial.commit(call.key, call.ask)
            except (ChatkeepError, ValueError) as error:
                return type(error) is type(call.error) and _conflict(error) == _conflict(call.error)
            return call.error is None and outcome.life == ABSENT == answer.life
        if call.error is not None:
            return False
        if call.name == "read":
            log, span = call.ask
            page = await model.read(call.key, log, span)
            told = answer.head and (answer.head.life, answer.head.logs.get(log))
            true = page.head and (page.head.life, page.head.logs.get(log))
            return (list(answer.records), answer.more, told) == (list(page.records), page.more, true)
        if call.name == "state":
            return bool(_plain(answer) == _plain(await model.state(call.key, call.ask)))
        head = await model.head(call.key)
        told = answer and (answer.life, answer.logs, answer.meta, answer.expires_at, answer.fence, answer.lease)
        return bool(told == (head and (head.life, head.logs, head.meta, head.expires_at, head.fence, head.lease)))

    async def _look_again(self) -> None:
        """After a long time, and with nothing under way: all is there that should be, and nothing else is kept."""
        simulation = self.simulation
        simulation.trouble = 0.0
        simulation.calls_of[-1] = Call(-1, "look", KEYS[0], None, 0)
        backend = simulation.backend(SimulatedDriver(simulation, -1))
        self.now = simulation.now
        await self._same(backend)
        simulation.now += GRACE * 1.1
        self.now = simulation.now
        for _ in range(3):
            _stepped(backend.sweep(1000))
            simulation.now += GRACE * 1.1
        self.now = simulation.now
        await self._same(backend)
        documents = simulation.documents
        for owner, head in documents.heads.items():
            for name in _stepped(Sweep(backend).reached(owner)):
                until = documents.parts[owner, name].until if (owner, name) in documents.parts else None
                if until is not None and (head["kept"] is None or until < head["kept"]):
                    raise self.wrong(None, f"a part is kept until {until}, and its session needs it for longer: {head}")
        if simulation.ttl is not None:
            return  # the database deletes what has expired
        for owner, head in documents.heads.items():  # as later commits would
            _stepped(clear_garbage(backend.driver, owner, head["garbage"]))
        for owner, name in documents.parts:
            reached = _stepped(Sweep(backend).reached(owner))
            if name not in reached:
                raise self.wrong(None, f"a part is left that nobody needs: {documents.parts[owner, name]}")

    async def _same(self, backend: Backend) -> None:
        for key in KEYS:
            for log in LOGS:
                page, true = _stepped(backend.read(key, log, Span())), await self.model.read(key, log, Span())
                if list(page.records) != list(true.records):
                    raise self.wrong(None, f"log {log!r} of {key} is {page.records}, and should be {true.records}")
            state, expected = _stepped(backend.state(key, Select())), await self.model.state(key, Select())
            if _plain(state) != _plain(expected):
                raise self.wrong(None, f"the state of {key} is {state}, and should be {expected}")


def _stepped(work: Awaitable[Any]) -> Any:
    """What comes of a call while nobody else does anything."""

    async def run() -> Any:
        return await work

    steps = run()
    while True:
        try:
            steps.send(None)
        except StopIteration as end:
            return end.value


def _plain(value: Any) -> Any:
    """Tuples and lists alike."""
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value


def _conflict(error: BaseException | None) -> Any:
    return getattr(error, "tail", None), getattr(error, "version", None), getattr(error, "seqs", None)


def schedules(number: int, first: int = 0, **options: Any) -> Iterator[Simulation]:
    """So many of them, each made when it is its turn."""
    for seed in range(first, first + number):
        yield Simulation(seed, **options)


def short_and_long(number: int) -> Iterator[Simulation]:
    """So many of them, every tenth a long one, in which much time passes."""
    for seed in range(number):
        yield Simulation(seed) if seed % 10 else Simulation(seed, processes=2, calls=60)
