"""One store for everything in an event loop that names it by the same URL and options.

The framework's betas make one message store for each thread. A thousand of them are a thousand holders of one store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from chatkeep import ConfigError, Store, open_store


class SharedStore:
    """A store and who holds it. It is closed with the last holder that lets go; one that is forgotten holds nothing."""

    def __init__(self, store: Store[Any]) -> None:
        self.store = store
        self._holders: WeakSet[object] = WeakSet()

    def hold(self, holder: object) -> None:
        """Count `holder`, once however often it is called."""
        self._holders.add(holder)

    async def release(self, holder: object) -> None:
        """Count `holder` no more, and close the store if nobody is left."""
        self._holders.discard(holder)
        if not self._holders:
            for key in [key for key, shared in _here().items() if shared is self]:
                del _here()[key]
            await self.store.close()


_Key = tuple[str | None, tuple[tuple[str, Any], ...]]
_STORES: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[_Key, SharedStore]] = WeakKeyDictionary()


def _here() -> WeakValueDictionary[_Key, SharedStore]:
    """The stores of the running event loop: a store belongs to the loop of its first use."""
    return _STORES.setdefault(asyncio.get_running_loop(), WeakValueDictionary())


def shared_store(url: str | None, options: Mapping[str, Any], holder: object) -> SharedStore:
    """The running loop's store for that URL and those options, held by `holder`; opened where there is none."""
    key = (url, tuple(sorted(options.items())))
    try:
        found = _here().get(key)
    except TypeError as error:
        raise ConfigError(
            f"options of a store that is shared by its URL are numbers and texts ({error}): open the store yourself "
            "with open_store(…), and pass it in"
        ) from error
    if found is None:
        found = _here()[key] = SharedStore(open_store(url, **options))
    found.hold(holder)
    return found
