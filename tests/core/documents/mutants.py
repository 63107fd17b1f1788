"""Mistakes in the document algorithm, each of which the schedules must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from chatkeep.documents import Change, Document, Part, attempts, logs, sweeping
from chatkeep.documents.inmemory import InMemoryDriver
from chatkeep.documents.packing import Ref, Stored
from chatkeep.documents.shelf import MissingError, Shelf, clear_garbage

T = TypeVar("T", bound=Callable[..., Any])


class Mutant(NamedTuple):
    name: str
    mistake: str
    owner: Any
    attribute: str
    value: Any


MUTANTS: list[Mutant] = []


def mutant(owner: Any, attribute: str, mistake: str) -> Callable[[T], T]:
    """Let a function stand in the place of `attribute`."""

    def add(value: T) -> T:
        MUTANTS.append(Mutant(value.__name__, mistake, owner, attribute, value))
        return value

    return add


swap = InMemoryDriver._swap
put = InMemoryDriver._put
prepare = attempts.Attempt._prepare
contents = Shelf.contents
leaves = Shelf.leaves


# The head


@mutant(InMemoryDriver, "_swap", "insert at tail + 1: a change is made if the tails are those that it was made from")
def insert_at_the_tail(self: InMemoryDriver, id: bytes, version: bytes, change: Change) -> bool:
    former: dict[bytes, list[Any]] = self.documents.__dict__.setdefault("former", {})
    head = self.documents.heads.get(id)
    if head is None:
        return False
    tails = [(log["name"], log["tail"]) for log in head.get("logs", ())]
    former[head["version"]] = tails
    if former.get(version) != tails:
        return False
    self.documents.heads[id] = {**change.document}
    return True


@mutant(InMemoryDriver, "_swap", "a change is made whatever has become of the head in the same life")
def last_one_wins(self: InMemoryDriver, id: bytes, version: bytes, change: Change) -> bool:
    head = self.documents.heads.get(id)
    if head is None or head["life"] != change.document["life"]:
        return swap(self, id, version, change)
    self.documents.heads[id] = {**change.document}
    return True


@mutant(attempts, "remembers", "after a lost answer nobody looks whether the write is stored")
def send_again(document: Document | None, version: bytes) -> bool:
    return False


@mutant(attempts, "remembers", "a write whose answer was lost is taken to be stored")
def hope(document: Document | None, version: bytes) -> bool:
    return document is not None and document["life"] is not None


@mutant(attempts.Attempt, "_check_dead", "that the head does not remember a write says that it is not stored")
def forget(self: attempts.Attempt, document: Document | None, plan: Any) -> None:
    self._unanswered, self.sent = None, False
    self._version = attempts.new_version()


# The parts


@mutant(InMemoryDriver, "_put", "a spill drops the messages from the head before it has copied them")
def copy_later(self: InMemoryDriver, id: bytes, life: str, parts: Sequence[Part], until: float | None) -> None:
    _after_the_head(self, lambda: put(self, id, life, parts, until), of_state=False)


@mutant(InMemoryDriver, "_put", "a state value is written after the head that names it")
def value_after_head(self: InMemoryDriver, id: bytes, life: str, parts: Sequence[Part], until: float | None) -> None:
    _after_the_head(self, lambda: put(self, id, life, parts, until), of_state=True)


def _after_the_head(driver: Any, act: Callable[[], None], *, of_state: bool) -> None:
    simulation = driver.simulation
    asked = simulation.calls_of[driver.process].ask
    if bool(getattr(asked, "state", ())) == of_state:
        simulation.late.append(act)
    else:
        act()


@mutant(attempts.Attempt, "_prepare", "what a write gives up is deleted before the write is made")
async def delete_first(self: attempts.Attempt, plan: Any, stored: Document | None) -> None:
    await prepare(self, plan, stored)
    await clear_garbage(self._driver, self._id, plan.shelf.garbage)


async def keep_no_longer(self: attempts.Attempt, plan: Any, stored: Document | None) -> None:
    """The head is told of a longer life, and its parts are not. See `test_documents`: it takes long lives."""
    driver = self._driver

    async def extend(*_: Any) -> None:
        return None

    driver.extend = extend  # type: ignore[method-assign]
    await prepare(self, plan, stored)


@mutant(sweeping, "GRACE", "a sweep deletes what a living writer is about to use")
def no_grace() -> None: ...


MUTANTS[-1] = MUTANTS[-1]._replace(value=-1.0)


@mutant(Shelf, "contents", "a reader does without what is missing")
async def do_without(self: Shelf, wanted: Any) -> Any:
    try:
        return await contents(self, wanted)
    except MissingError:
        raise _NothingError from None


class _NothingError(Exception): ...


async def _nothing(self: Shelf, refs: Sequence[Ref], *, keep: bool = False) -> Any:
    try:
        return await leaves(self, refs, keep=keep)
    except MissingError:
        return [list[Stored]() for _ in refs]


MUTANTS[-1] = MUTANTS[-1]._replace(attribute="leaves", value=_nothing)


@mutant(logs.Log, "_find_in_tree", "an id counts that a writer has noted who never committed")
async def believe_every_note(self: logs.Log, digests: dict[bytes, str]) -> dict[str, int]:
    driver = self._shelf.driver
    names = await driver.holding(self._shelf.id, list(digests))
    parts = driver.documents.parts  # type: ignore[attr-defined]
    noted = {each for name in names if (kept := parts.get((self._shelf.id, name))) for each in kept.digests}
    return {id: 1 for digest, id in digests.items() if digest in noted}
