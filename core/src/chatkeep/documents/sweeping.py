"""Sweeping: what has expired, what dead writers left, and what was given up and is not deleted yet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from chatkeep.errors import CorruptRecordError, StoreError, StoreFormatError
from chatkeep.records import SweepReport

from .driver import GRACE, Document, UncertainError
from .packing import make_ref, unpack_directory, unpack_entry, unpack_records, unpack_state
from .sessions import difference, due_of, is_live, new_version, touched
from .shelf import MissingError, Shelf, part_names
from .wholeness import check_head

if TYPE_CHECKING:
    from .backend import DocumentBackend

logger = logging.getLogger("chatkeep.documents")


class Sweep:
    """One sweep."""

    def __init__(self, backend: DocumentBackend) -> None:
        self._backend = backend
        self._driver = backend.driver

    async def make(self, budget: int) -> SweepReport:
        """Remove about `budget` leftovers; what they were."""
        expired, now = 0, self._driver.clock()
        for id, document in await self._driver.due(now, budget):
            try:
                check_head(document)
                expired += await self._end(id, document, now)
            except (CorruptRecordError, StoreFormatError) as error:
                logger.warning("a session is left out of a sweep: %s", error)
        orphans = 0
        found = await self._driver.pending(now - GRACE, max(0, budget - expired))
        by_session = dict[bytes, list[bytes]]()
        for id, name in found:
            by_session.setdefault(id, []).append(name)
        for id, names in by_session.items():
            reached = await self.reached(id)
            if reached is None:
                continue  # it changes just now: another time
            lost = [name for name in names if name not in reached]
            await self._driver.drop(id, lost)
            await self._driver.settle(id, [name for name in names if name in reached])
            orphans += len(lost)
        return SweepReport(expired, orphans)

    async def _end(self, id: bytes, document: Document, now: float) -> bool:
        """Remove what is over of a session: all of it, where its time is, which is what it says."""
        if document["life"] is None:
            if document["reap"] is None:
                await self._backend.clear(id, document)
            else:
                await self._driver.remove(id, document["version"])
            return False
        if document["lives"] and is_live(document, now):
            await self._clear_former(id, document)
            return False
        ended = await self._backend.end(id, document, lambda each: bool(each and not is_live(each, now)), dry_run=False)
        return ended is not None and document["session"] != ""

    async def reached(self, id: bytes) -> set[bytes] | None:
        """The names of all parts that can be reached from the head, or are listed there as given up."""
        document = await self._driver.find(id, "writer")
        reached = set[bytes]()
        if document is None or document["life"] is None:
            return reached
        shelf = self._backend.planner.shelf(id, document["life"])
        try:
            for log in document["logs"]:
                refs = [make_ref(row) for row in log["refs"]]
                bodies = [stored.body for entry in log["in"] for stored in unpack_entry(entry)]
                while refs:
                    reached.update(name for ref in refs for name in part_names(ref.name, ref.parts))
                    data = await shelf.contents((ref.name, ref.parts) for ref in refs if not ref.level and ref.bodies)
                    bodies += [stored.body for each in data for stored in unpack_records(each)]
                    below = await shelf.lists([ref for ref in refs if ref.level])
                    refs = [child for children in below for child in children]
                reached.update(name for body in bodies if body for name in part_names(body.name, body.parts))
                if log["gone"] and log["gone"]["part"]:
                    name, parts = log["gone"]["part"]
                    reached.update(part_names(bytes.fromhex(name), parts))
            reached |= await self._reached_by_state(document["state"], shelf)
        except (MissingError, StoreError) as error:
            logger.info("what a session needs cannot be told now: %s", error)
            return None
        for name, parts, _ in document["garbage"]:
            reached.update(part_names(bytes.fromhex(name), parts))
        return reached

    async def _reached_by_state(self, state: Document | None, shelf: Shelf) -> set[bytes]:
        if state is None:
            return set()
        reached = set[bytes]()
        packed = [state["in"]] if state["in"] is not None else []
        if state["directory"]:
            name, parts = state["directory"]
            leaf_names = [(bytes.fromhex(name), parts)]
            (data,) = await shelf.contents(leaf_names)
            leaf_names += [leaf[1:] for leaf in unpack_directory(data)]
            packed += await shelf.contents(leaf_names[1:])
            reached.update(each for name, parts in leaf_names for each in part_names(name, parts))
        bodies = [value.body for each in packed for value in unpack_state(each) if value.body]
        reached.update(each for body in bodies for each in part_names(body.name, body.parts))
        return reached

    async def _clear_former(self, id: bytes, document: Document) -> None:
        """Delete what the former lives of a living session left."""
        await self._backend.clear_lives(id, document["lives"])
        cleared = touched(document, new_version(), self._driver.limits.recent)
        cleared |= {"lives": [], "due": due_of(document)}
        try:
            await self._driver.swap(id, document["version"], difference(document, cleared))
        except UncertainError as error:
            logger.info("that former lives are deleted is not noted yet: %s", error.__cause__ or error)
