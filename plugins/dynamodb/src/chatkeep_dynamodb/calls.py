"""Calls of the blocking client from threads of the plugin's own, repeated where that is safe."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from botocore.exceptions import ClientError

from chatkeep.documents import UncertainError

from .clock import ServerClock
from .failures import DRIVER_ERRORS, UNREACHED, code_of, is_busy, is_lost, was_repeated
from .items import Item

T = TypeVar("T")
Answer = dict[str, Any]

WRITTEN_AT_ONCE, READ_AT_ONCE = 25, 100
"""How many items one BatchWriteItem and one BatchGetItem may have."""
BATCH_BYTES = 4 * 1024**2
"""How much one BatchWriteItem is given; it may have 16 MB, of which a third is the encoding's."""
LOST = 4
"""How often a call is repeated whose answer was lost, or that nobody took."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
UNMET = "ConditionalCheckFailedException"


class Calls:
    """Calls on one table. `patience` is how many seconds a call may go on being repeated while the table is busy."""

    def __init__(self, client: Any, table: str, *, threads: int, patience: float, clock: ServerClock) -> None:
        self.client = client
        self.table = table
        self.clock = clock
        self._patience = patience
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="chatkeep-dynamodb")

    async def end(self) -> None:
        """Wait for calls that nobody waits for any more, without blocking the event loop, and let the threads go."""
        ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def wait() -> None:
            self._threads.shutdown(wait=True)
            loop.call_soon_threadsafe(ended.set)

        # One of the pool's own threads would wait for itself.
        waiting = ThreadPoolExecutor(1, thread_name_prefix="chatkeep-dynamodb-closing")
        waiting.submit(wait)
        try:
            await ended.wait()
        finally:
            waiting.shutdown(wait=False)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns, done in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _send(self, operation: str, parameters: Mapping[str, Any]) -> Answer:
        sent = time.monotonic()
        try:
            answer = cast("Answer", getattr(self.client, operation)(**parameters))
        except ClientError as error:
            self._look(cast("Any", error.response), sent)
            raise
        self._look(answer, sent)
        return answer

    def _look(self, answer: Answer, sent: float) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.look(headers.get("date"), sent, time.monotonic())

    async def make(self, operation: str, parameters: Callable[[], dict[str, Any]], read: Callable[[Answer], T]) -> T:
        """What `read` makes of the answer. `parameters` and `read` are called in the thread, as the client is.

        For what may be done twice: it is repeated, after pauses, where the table is busy or the answer was lost.
        """
        return await self._repeated(operation, parameters, read, lost=LOST)

    async def make_unless_unmet(
        self, operation: str, parameters: Callable[[], dict[str, Any]], read: Callable[[Answer], T]
    ) -> T | None:
        """The same with a condition; None where it is not met, which it is not either if it was done before."""
        try:
            return await self.make(operation, parameters, read)
        except ClientError as error:
            if code_of(error) != UNMET:
                raise
            return None

    async def change(self, operation: str, parameters: Callable[[], dict[str, Any]]) -> bool:
        """A conditional change, which may not be repeated blindly; whether its condition was met.

        An `UncertainError` if it is not known whether the change was made.
        """
        try:
            await self._repeated(operation, parameters, bool, lost=0)
        except DRIVER_ERRORS as error:
            if code_of(error) == UNMET and not was_repeated(cast("ClientError", error)):
                return False
            if code_of(error) == UNMET or is_lost(error):
                raise UncertainError(" ".join(str(error).split())) from error
            raise
        return True

    async def _repeated(
        self, operation: str, parameters: Callable[[], dict[str, Any]], read: Callable[[Answer], T], *, lost: int
    ) -> T:
        end, attempt, failed = time.monotonic() + self._patience, 0, 0

        def work() -> T:
            return read(self._send(operation, {"TableName": self.table, **parameters()}))

        def work_on_several() -> T:
            return read(self._send(operation, parameters()))

        while True:
            try:
                return await self.in_thread(work_on_several if operation.startswith("batch_") else work)
            except DRIVER_ERRORS as error:
                failed += not is_busy(error)
                again = (
                    is_busy(error)
                    or (failed <= lost and is_lost(error))
                    or (failed <= LOST and isinstance(error, UNREACHED))
                )
                if not again or time.monotonic() >= end:
                    raise
                attempt += 1
                await asyncio.sleep(self._pause(attempt, end))

    @staticmethod
    def _pause(attempt: int, end: float) -> float:
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt, max(0.0, end - time.monotonic()))
        return random.uniform(0, longest)  # noqa: S311 - spreads the waiting ones

    # Several items

    async def write(self, requests: Sequence[Item]) -> None:
        """Put and delete items, each ``{"PutRequest": …}`` or ``{"DeleteRequest": …}``, in any order."""
        await together([self._writing(batch) for batch in _batches(requests)])

    def _writing(self, batch: list[Item]) -> Callable[[], Coroutine[Any, Any, None]]:
        async def write() -> None:
            await self._until_done(
                "batch_write_item", "UnprocessedItems", batch, lambda left: left, lambda answer: None
            )

        return write

    async def delete(self, keys: Iterable[Item]) -> None:
        """Delete the items with these keys, where they are there."""
        await self.write([{"DeleteRequest": {"Key": each}} for each in _once(keys)])

    async def read(self, keys: Sequence[Item], read: Callable[[Item], T], *, only: Sequence[str] = ()) -> list[T]:
        """What `read` makes of each of the items that are there, in any order; of these attributes alone."""
        found, keys = list[T](), _once(keys)
        options: dict[str, Any] = {"ConsistentRead": True}
        if only:
            options["ProjectionExpression"] = ", ".join(f"#{place}" for place in range(len(only)))
            options["ExpressionAttributeNames"] = {f"#{place}": name for place, name in enumerate(only)}

        def reading(batch: list[Item]) -> Callable[[], Coroutine[Any, Any, None]]:
            async def get() -> None:
                def take(answer: Answer) -> list[T]:
                    return [read(item) for item in answer["Responses"].get(self.table, ())]

                await self._until_done(
                    "batch_get_item",
                    "UnprocessedKeys",
                    batch,
                    lambda left: {"Keys": left, **options},
                    lambda answer: found.extend(take(answer)),
                )

            return get

        await together(
            [reading(list(keys[place : place + READ_AT_ONCE])) for place in range(0, len(keys), READ_AT_ONCE)]
        )
        return found

    async def _until_done(
        self,
        operation: str,
        rest: str,
        batch: list[Item],
        asked: Callable[[list[Item]], Any],
        take: Callable[[Answer], None],
    ) -> None:
        """Ask for all of a batch, and again for what the table had no capacity for."""
        end, attempt, left = time.monotonic() + self._patience, 0, batch

        def taken(answer: Answer) -> Answer:
            take(answer)
            return answer

        while left:
            now = left

            def parameters(now: list[Item] = now) -> dict[str, Any]:
                return {"RequestItems": {self.table: asked(now)}}

            answer = await self._repeated(operation, parameters, taken, lost=LOST)
            unprocessed = answer.get(rest, {}).get(self.table) or []
            left = unprocessed["Keys"] if isinstance(unprocessed, dict) else unprocessed
            if not left:
                return
            if len(left) == len(now):
                if time.monotonic() >= end:
                    raise busy(operation)
                attempt += 1
            else:
                attempt = 1
            await asyncio.sleep(self._pause(attempt, end))

    async def query(
        self, condition: str, values: Mapping[str, Item], read: Callable[[Item], T], **more: Any
    ) -> list[T]:
        """What `read` makes of all items for which the key condition holds, page by page. In it, #p and #s are keys."""
        found, start = list[T](), None
        while True:
            page, start = await self.page(condition, values, read, start=start, **more)
            found += page
            if start is None:
                return found

    async def page(
        self, condition: str, values: Mapping[str, Item], read: Callable[[Item], T], *, start: Item | None, **more: Any
    ) -> tuple[list[T], Item | None]:
        """One page of the same, from `start` on, and where the next one starts; None: there is no other."""
        index = more.get("IndexName")
        parameters: dict[str, Any] = {
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": dict(values),
            **({} if index else {"ConsistentRead": True}),
            **more,
        }
        if start is not None:
            parameters["ExclusiveStartKey"] = start

        def take(answer: Answer) -> tuple[list[T], Item | None]:
            return [read(item) for item in answer["Items"]], answer.get("LastEvaluatedKey")

        return await self._repeated("query", lambda: parameters, take, lost=LOST)


def busy(operation: str) -> ClientError:
    """The error of a table that goes on having no capacity for some of a batch."""
    said = "the table has had no capacity for some of the items for too long"
    return ClientError({"Error": {"Code": "ProvisionedThroughputExceededException", "Message": said}}, operation)


def _once(keys: Iterable[Item]) -> list[Item]:
    """The keys, none of them twice: a batch may have no two requests for one item."""
    return list({(each["pk"]["B"], each["sk"]["B"]): each for each in keys}.values())


def _batches(requests: Sequence[Item]) -> Iterator[list[Item]]:
    """As many of them at once as one call may have."""
    batch, size = list[Item](), 0
    for request in requests:
        more = len(request["PutRequest"]["Item"].get("data", {"B": b""})["B"]) if "PutRequest" in request else 0
        if batch and (len(batch) == WRITTEN_AT_ONCE or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += more
    if batch:
        yield batch


async def together(calls: Sequence[Callable[[], Coroutine[Any, Any, None]]], *, at_once: int = 16) -> None:
    """Make all of these calls, several at once. An error of one ends it."""
    if len(calls) == 1:
        await calls[0]()
        return
    try:
        for place in range(0, len(calls), at_once):
            async with asyncio.TaskGroup() as group:
                for call in calls[place : place + at_once]:
                    group.create_task(call())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
