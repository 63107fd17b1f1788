"""What the classes here are given in the place of a store, and the words for what is none."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from types import EllipsisType
from typing import Any

import chatkeep.sync
from chatkeep import ConfigError, ScopedStore
from chatkeep.options import StoreOptions, own_keys


def narrowed(
    view: ScopedStore[Any], *, app: str | EllipsisType, tenant: str | EllipsisType, user: str | EllipsisType
) -> ScopedStore[Any]:
    """The view of what is given of a scope; the view itself where nothing is."""
    if app is ... and tenant is ... and user is ...:
        return view
    return view.scoped(app=app, tenant=tenant, user=user)


def refuse_options(names: Collection[str]) -> None:
    """A ConfigError if there are options beside a store."""
    own = own_keys(StoreOptions)
    for name in sorted(set(names) - own):
        close = get_close_matches(name, [*own, "tenant", "user", "window", "source_id"], n=1)
        meant = f": did you mean {close[0]}?" if close else ", neither of a store nor here"
        raise ConfigError(f"{name!r} is no option{meant}")
    if names:
        first, *_ = named = sorted(names)
        raise ConfigError(
            f"give {', '.join(named)} to open_store(url, {first}=…): this store is open already, and has its options"
        )


def no_store(given: object, taker: str) -> TypeError:
    """The error for what is neither a store nor a URL."""
    if isinstance(given, chatkeep.sync.ScopedStore):
        return TypeError(
            f"{taker} takes a store of chatkeep.open_store, not one of chatkeep.sync.open_store: the framework is "
            "asynchronous, and a call that blocks would stop all of it"
        )
    return TypeError(f"{taker} takes a store, a scope of one or a URL, not {type(given).__name__}")
