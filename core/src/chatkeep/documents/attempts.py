"""One write, tried until it is stored or refused."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from chatkeep import heads
from chatkeep.errors import ChatkeepError, DuplicateIdError, OutcomeUnknownError, StoreError
from chatkeep.records import Key, Outcome, Write

from .driver import Change, Document, UncertainError, View
from .packing import DamagedError
from .sessions import Plan, difference, due_of, new_life, new_version, remembers, version_of
from .shelf import MissingError, clear_garbage

if TYPE_CHECKING:
    from .backend import DocumentBackend

logger = logging.getLogger("chatkeep.documents")

MISSED = 3
"""How often a part may be missing that the head names, before that is damage and not another's doing."""
UNANSWERED = 4
"""How often a change whose answer was lost is looked for and sent again."""


class Attempt:
    """One write, tried until it is stored or refused."""

    def __init__(self, backend: DocumentBackend, key: Key, id: bytes, write: Write) -> None:
        self._backend = backend
        self._driver = backend.driver
        self._key = key
        self._id = id
        self._write = write
        self.sent = False
        """Whether a change was sent whose outcome is not known (yet)."""
        self._unanswered: Plan | None = None
        """The plan whose change was sent and not answered."""
        self._guard: bytes | None = None
        """The version of the head that the change was sent for; None if there was none."""
        self._version, self._life = new_version(), new_life()

    async def make(self) -> Outcome:
        try:
            return await self._make()
        except self._driver.driver_errors as error:
            if self._unanswered is None:
                raise
            raise self._unknown(error) from error

    async def _make(self) -> Outcome:
        backend, driver, id = self._backend, self._driver, self._id
        document, fresh = backend.held(id), False
        losses = missing = number = 0
        while True:
            if document is None and not fresh:
                view: View = "writer" if self._unanswered is None else "settled"
                document, fresh = await backend.find(self._key, id, view), True
                if self._unanswered is not None and remembers(document, self._version):
                    return await self._settled(self._unanswered, document)
            again = fresh and self._unanswered is not None and version_of(document) == self._guard
            if again and self._unanswered is not None:
                plan = self._unanswered  # the same change, since it may still be made as it was sent
            else:
                if fresh and self._unanswered is not None:
                    self._check_dead(document, self._unanswered)
                try:
                    plan = await backend.planner.plan(
                        self._key,
                        id,
                        self._write,
                        document,
                        version=self._version,
                        life=self._life,
                        lenient=missing > MISSED,
                    )
                except (MissingError, DamagedError) as error:
                    if missing > MISSED:
                        raise StoreError(f"{heads.place(self._key)} is damaged: {error}") from error
                    missing += fresh
                    document, fresh = None, False
                    continue
                except (ChatkeepError, ValueError) as error:
                    if fresh and isinstance(error, DuplicateIdError):
                        # Ids were looked for in parts of which some may have been given up meanwhile.
                        latest = await backend.find(self._key, id, "writer")
                        if version_of(latest) != version_of(document):
                            document = latest
                            continue
                    if fresh:
                        raise
                    logger.debug("%s: read anew, for %s", heads.place(self._key), error)
                    document = None
                    continue
                if plan.document is None and fresh:
                    return plan.outcome
                if plan.document is None:
                    document = None
                    continue
                await self._prepare(plan, document)
            self._guard, self.sent = version_of(document), True
            try:
                made = await self._change(document, plan)
            except UncertainError as error:
                losses += 1
                self._unanswered = plan
                backend.let_go(id)
                if losses > UNANSWERED:
                    raise self._unknown(error.__cause__ or error) from error
                document, fresh = None, False
                await driver.pause(losses)
                continue
            if made:
                return await self._settled(plan, plan.document)
            backend.let_go(id)
            if not again:
                self.sent = False
                await self._take_back(plan)
            number += fresh
            document, fresh = None, False
            if number > 1:
                await driver.pause(number)

    def _check_dead(self, document: Document | None, plan: Plan) -> None:
        """The head is another one by now: the change that was not answered will not be made. Was it?

        The head does not remember it. That says all, unless so many have followed that it may have been forgotten.
        """
        assert plan.document is not None
        behind: int = -1 if document is None else document["number"] - plan.document["number"]
        if not 0 <= behind < self._driver.limits.recent:
            raise OutcomeUnknownError(
                f"{heads.place(self._key)}: the answer to a write was lost, and so much has happened since that it "
                "cannot be told whether it is stored: send it again with the same batch_id or message ids, and it is "
                "stored once"
            )
        self._unanswered, self.sent = None, False
        self._version = new_version()

    def _unknown(self, error: BaseException) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{heads.place(self._key)}: the answer to a write was lost ({error}): it may or may not be stored; send it "
            "again with the same batch_id or message ids, and it is stored once"
        )

    async def _prepare(self, plan: Plan, stored: Document | None) -> None:
        """Everything that must be there before the head is changed."""
        document, driver, id = plan.document, self._driver, self._id
        assert document is not None
        if document["life"] is None:
            return
        if stored is not None and stored["life"] == document["life"]:
            if stored["parts"] and _sooner(stored["kept"], document["kept"]):
                await driver.extend(id, document["life"], document["kept"])
            if len(document["garbage"]) > driver.limits.garbage and stored["garbage"]:
                await clear_garbage(driver, id, stored["garbage"])
                document["garbage"] = document["garbage"][len(stored["garbage"]) :]
            if stored["lives"]:
                await self._backend.clear_lives(id, stored["lives"])
                document["lives"], document["due"] = [], due_of(document)
        if plan.parts:
            await driver.put(id, document["life"], plan.parts, until=document["kept"])

    async def _change(self, before: Document | None, plan: Plan) -> bool:
        """Make the plan's change; whether the head was still the one that it was made from."""
        driver, id, after = self._driver, self._id, plan.document
        assert after is not None
        if before is None:
            return await driver.insert(id, after)
        same = before["life"] == after["life"]
        change = difference(before, after) if same else Change(after, former=before)
        return await driver.swap(id, before["version"], change)

    async def _take_back(self, plan: Plan) -> None:
        """Parts that were stored in vain."""
        if plan.parts:
            await self._driver.drop(self._id, [part.name for part in plan.parts])

    async def _settled(self, plan: Plan, document: Document | None) -> Outcome:
        """It is stored: what remains to be done may fail."""
        backend = self._backend
        self.sent = False
        backend.hold(self._id, document)
        if plan.document is not None and document is not None and document["version"] == plan.document["version"]:
            try:
                await backend.after_commit(self._id, self._write, document)
            except backend.failures as error:
                logger.warning("%s: what was given up is not deleted yet: %s", heads.place(self._key), error)
            except asyncio.CancelledError:
                logger.info("%s: what was given up is not deleted yet: there was no time left", heads.place(self._key))
        return plan.outcome


def _sooner(kept: float | None, needed: float | None) -> bool:
    """Whether parts that are kept until then are not kept long enough."""
    return kept is not None and (needed is None or needed > kept)
