"""State: JSON values under keys, of a session or of a whole scope."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from . import heads
from .arguments import NAME_BYTES, check_id
from .errors import ConflictError, CorruptRecordError, SerializationError
from .records import Expiry, Key, Select, StateEntry, StateOp, Write

if TYPE_CHECKING:
    from .store import Store

T = TypeVar("T")
D = TypeVar("D")


class Versioned(NamedTuple):
    """A value and its version: give that to `set` or `delete` as `expected`."""

    value: Any
    version: str


class State:
    """The state of a session or of a scope. Writes to different keys never lose each other.

    Each key has an opaque version, never reused; `entry` gives it beside the value. ``expected=version`` makes a write
    conditional on it, and ``expected=chatkeep.ABSENT`` on the key not being there: else it is a `ConflictError`, which
    carries the current version.
    """

    __slots__ = ("_fence", "_key", "_life", "_store")

    def __init__(self, store: Store[Any], key: Key, *, life: str | None = None, fence: int | None = None) -> None:
        self._store = store
        self._key = key
        self._life = life
        self._fence = fence

    @overload
    async def get(self, key: str, default: D, *, type: type[T]) -> T | D: ...
    @overload
    async def get(self, key: str, *, type: type[T]) -> T | None: ...
    @overload
    async def get(self, key: str, default: Any = None) -> Any: ...
    async def get(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """The value, or `default`. With `type` it is validated and built by pydantic."""
        entry = await self.entry(key, type=type)
        return default if entry is None else entry.value

    async def entry(self, key: str, *, type: Any = None) -> Versioned | None:
        """The value with its version, or None."""
        check_id(key, "a state key", NAME_BYTES)
        page = await self._store.connection.read(self._store.backend.state, self._key, Select(keys=(key,)))
        if page.life is not None:
            await self._store.renew(self._key)
        return next((Versioned(self._load(entry, type), entry.version) for entry in page.entries), None)

    async def set(self, key: str, value: Any, *, type: Any = None, expected: str | None = None) -> str:
        """Set a key; its new version. With `type` the value is turned to JSON by pydantic.

        `expected` is the version that `entry` gave, or ``chatkeep.ABSENT``: only if the key is not there.
        """
        (version,) = await self._commit([self.operation(key, value, type, expected)])
        assert version is not None
        return version

    async def update(self, values: Mapping[str, Any]) -> None:
        """Set several keys in one atomic step."""
        if values:
            await self._commit([self.operation(key, value) for key, value in values.items()])

    async def delete(self, key: str, *, expected: str | None = None) -> None:
        """Delete a key, if it is there."""
        check_id(key, "a state key", NAME_BYTES)
        await self._commit([StateOp(key, expected=expected)], must_exist=expected in (None, ""))

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, in the order of their bytes in UTF-8."""
        return [entry.key for entry in await self._entries(prefix)]

    async def items(self, prefix: str = "", *, type: Any = None) -> dict[str, Any]:
        """Keys and values, in the same order."""
        return {entry.key: self._load(entry, type) for entry in await self._entries(prefix)}

    async def _entries(self, prefix: str) -> Sequence[StateEntry]:
        """All entries with the prefix, from one instant."""
        if prefix != "":
            check_id(prefix, "a prefix of state keys", NAME_BYTES)
        page = await self._store.connection.read(self._store.backend.state, self._key, Select(prefix=prefix))
        if page.life is not None:
            await self._store.renew(self._key)
        return page.entries

    def operation(self, key: str, value: Any, type: Any = None, expected: str | None = None) -> StateOp:
        """The operation that sets a key: everything checked, nothing written."""
        check_id(key, "a state key", NAME_BYTES)
        serializer = self._store.serializer
        try:
            form, data = serializer.dumps_typed(value if type is None else serializer.dump_as(type, value))
        except SerializationError as error:
            raise error.below(f"state[{key!r}]") from error.__cause__
        self._store.check_size(f"the value of state key {key!r}", len(data))
        return StateOp(key, form, data, expected)

    def _load(self, entry: StateEntry, type: Any) -> Any:
        serializer = self._store.serializer
        try:
            value = serializer.loads_typed(entry.format, entry.value)
        except (ValueError, TypeError, LookupError) as error:
            raise CorruptRecordError(
                f"state key {entry.key!r} of {heads.place(self._key)} cannot be read: {error}. "
                "Set it anew, or delete it; the other keys can be read"
            ) from error
        return value if type is None else serializer.load_as(type, value)

    async def _commit(self, operations: list[StateOp], *, must_exist: bool = False) -> list[str | None]:
        expiry = self._store.expiry if self._key.session else Expiry()
        write = Write(
            os.urandom(16),
            state=operations,
            expiry=expiry,
            life=self._life,
            fence=self._fence,
            must_exist=must_exist,
        )
        try:
            outcome = await self._store.connection.write(self._store.backend.commit, self._key, write)
        except ConflictError as error:
            heads.name_place(error, self._key)
            raise
        return list(outcome.versions)
