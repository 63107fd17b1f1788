"""What the adapters that take ``(store_or_url, *, app, tenant, user, **options)`` have in common."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, Self

from chatkeep import ScopedStore, open_store
from chatkeep.arguments import check_id

from .agent_framework.given import narrowed, no_store, refuse_options
from .agent_framework.shared import SharedStore, shared_store


class HeldStore:
    """A store of the caller's, or the one that its event loop shares for a URL, narrowed to a scope."""

    def __init__(
        self,
        store: ScopedStore[Any] | str | None = None,
        *,
        app: str | EllipsisType = ...,
        tenant: str | EllipsisType = ...,
        user: str | EllipsisType = ...,
        **options: Any,
    ) -> None:
        self._narrowed: dict[str, Any] = {"app": app, "tenant": tenant, "user": user}
        if isinstance(store, ScopedStore):
            refuse_options(options)
            store = narrowed(store, app=app, tenant=tenant, user=user)
        elif store is None or isinstance(store, str):
            # What is wrong with it is said here: a framework may keep to itself what is raised by a write.
            open_store(store, **options)
            for name, value in self._narrowed.items():
                if value is not ...:
                    check_id(value, name)
        else:
            raise no_store(store, type(self).__name__)
        self._given = store
        self._options = options
        self._shared: SharedStore | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of a store that was opened from a URL; one that was passed in stays open. May be called twice."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release(self)

    @property
    def view(self) -> ScopedStore[Any]:
        """The store, narrowed to the scope. Inside an event loop; no I/O."""
        if isinstance(self._given, ScopedStore):
            return self._given
        if self._shared is None:
            self._shared = shared_store(self._given, self._options, self)
        return narrowed(self._shared.store, **self._narrowed)
