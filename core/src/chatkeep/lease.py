"""A lease: at most one holder at a time, and a fencing token for the one whose time ran out unnoticed."""

from __future__ import annotations

import asyncio
import os
import random
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from .errors import ChatkeepError, ConflictError, FencedError, LeaseHeldError
from .records import LeaseOp, Outcome, Write

if TYPE_CHECKING:
    from .session import Session

M = TypeVar("M")


class Lease(Generic[M]):
    """Use it with ``async with session.lease(ttl=30) as guarded``: `guarded` is the session, guarded.

    Its writes carry the lease's fencing token: once another holder has taken the lease over, or the session has begun
    a new life, they are refused with a `FencedError` or a `ConflictError`. Unguarded writes are not hindered.
    """

    def __init__(self, session: Session[M], *, ttl: float, wait: float) -> None:
        self._session = session
        self._ttl = ttl
        self._wait = wait
        self._owner = os.urandom(8).hex()
        self._guarded: Session[M] | None = None

    async def __aenter__(self) -> Session[M]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait
        await self._session._store.open()  # so that whoever is cancelled below has sent a write
        while True:
            try:
                outcome = await self._take()
                break
            except LeaseHeldError:
                left = deadline - loop.time()
                if left <= 0:
                    raise
                await asyncio.sleep(min(left, random.uniform(0.02, 0.1)))  # noqa: S311 - spreads the waiting ones
        self._guarded = self._session.guarded(outcome.life, outcome.fence)
        return self._guarded

    async def _take(self) -> Outcome:
        try:
            return await self._commit(self._session, self._ttl)
        except asyncio.CancelledError as cancellation:
            if cancellation.__cause__ is not None:
                raise  # the write was refused: there is nothing to give back
            try:
                await self._give_back(self._session)
            except ChatkeepError as error:
                raise cancellation from error  # the lease ends with its time
            raise

    async def renew(self) -> None:
        """Hold it for another `ttl` seconds from now. A `FencedError` if it has passed to somebody else."""
        if self._guarded is None:
            raise RuntimeError("the lease is not held: enter it first")
        try:
            await self._commit(self._guarded, self._ttl)
        except LeaseHeldError as error:
            raise FencedError(str(error)) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        guarded, self._guarded = self._guarded, None
        if guarded is not None:
            await self._give_back(guarded)

    async def _give_back(self, session: Session[M]) -> None:
        try:
            await self._commit(session, 0)
        except ConflictError:
            return  # it has passed to somebody else: there is nothing to give back

    async def _commit(self, session: Session[M], ttl: float) -> Outcome:
        return await session.commit(Write(os.urandom(16), lease=LeaseOp(self._owner, ttl), must_exist=ttl == 0))
