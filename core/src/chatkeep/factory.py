"""`open_store`: from a connection URL to a store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar, overload

from .backend import check_backend
from .codecs import ChatMessageCodec, MessageCodec, check_codec
from .errors import ConfigError
from .messages import ChatMessage
from .registered import RegisteredType
from .serializer import SessionSerializer
from .store import Store
from .url import StoreURL

M = TypeVar("M")

URL_VARIABLE = "CHATKEEP_URL"
DEFAULT_URL = "sqlite:///chatkeep.db"

Types = Iterable[type | tuple[str, type] | RegisteredType]


def store_url(url: str | None = None, *, client: object = None) -> StoreURL:
    """The URL that `open_store` takes: the given one, else that of the environment, else a file in this folder.

    The file is no choice for somebody's own `client`: which backend it belongs to must be said.
    """
    if url is None:
        url = os.environ.get(URL_VARIABLE) or ("" if client is not None else DEFAULT_URL)
        if not url:
            raise ConfigError("client= needs the URL of its backend beside it: open_store('redis://', client=…)")
    return StoreURL.parse(url)


@overload
def open_store(
    url: str | None = None, *, client: object = None, types: Types = (), codec: None = None, **options: Any
) -> Store[ChatMessage]: ...
@overload
def open_store(
    url: str | None = None, *, client: object = None, types: Types = (), codec: MessageCodec[M], **options: Any
) -> Store[M]: ...
def open_store(
    url: str | None = None,
    *,
    client: object = None,
    types: Types = (),
    codec: MessageCodec[Any] | None = None,
    **options: Any,
) -> Store[Any]:
    """The store behind a connection URL: not connected yet, usable with ``async with`` and without.

    Without a URL: that of the environment variable ``CHATKEEP_URL``, else ``sqlite:///chatkeep.db``. `options` are
    those of `StoreOptions` and of the backend; they win over the URL's query. `client` is a driver's client of your
    own, which is used instead of a new one and never closed; the URL says which backend it is for. `types` are your
    classes that may stand in messages and state: pydantic models, dataclasses, Enums. `codec` says what a message is:
    `ChatMessage` unless told otherwise.

    A `ConfigError` if the URL, an option or the codec is wrong, or the backend is missing. Nothing is connected here.
    """
    # pydantic's models, pluggy and the entry points wait for the first store.
    from .options import parse_options  # noqa: PLC0415
    from .plugins import spec_for  # noqa: PLC0415

    parsed = store_url(url, client=client)
    spec = spec_for(parsed.scheme)
    if client is not None and not spec.takes_client:
        raise ConfigError(f"the {spec.name} backend takes no client= of yours: everything it needs is in the URL")
    checked = parse_options(spec.options, parsed, options)
    return Store(
        check_backend(spec.open(parsed, checked, client), spec.name),
        name=str(parsed),
        options=checked,
        serializer=SessionSerializer(types),
        codec=ChatMessageCodec() if codec is None else check_codec(codec),
        ours=client is None,
    )
