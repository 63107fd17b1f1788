"""A command on its way to a server, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from . import failures
from .scripts import CATALOGUE, Script

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # whose annotation is of tuples of one
_MULTI, _EXEC = pack(("MULTI",)), pack(("EXEC",))


class Command:
    """A command that is to be sent, and the future that gets its answer."""

    __slots__ = (
        "args", "decode", "future", "hopes", "keys", "plain", "script", "sent", "since", "uncertain", "writes",
    )  # fmt: skip

    def __init__(
        self,
        script: Script | None,
        keys: Sequence[bytes],
        args: Sequence[Any],
        decode: Callable[[Any], Any] | None,
        future: asyncio.Future[Any],
        *,
        writes: bool = False,
        hopes: bool = True,
        plain: Sequence[tuple[Any, ...]] = (),
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.decode = decode
        self.future = future
        self.writes = writes
        self.hopes = hopes
        """Whether it is sent again where the server cannot be reached."""
        self.plain = plain
        """Commands that do, in one transaction, what the script does. They are sent instead where nothing hinders."""
        self.sent = False
        self.uncertain = False
        """Whether it was sent and nobody can say what became of it."""
        self.since = 0.0
        """When it failed first."""

    def parts(self, *, text: bool = False) -> tuple[Any, ...]:
        """What is sent; with the script's text where the server does not know it."""
        if self.script is None:
            return tuple(self.args)
        name = ("EVAL", self.script.text) if text else ("EVALSHA", self.script.digest)
        return (*name, len(self.keys), *self.keys, *self.args)

    def packed(self, *, text: bool = False) -> bytes:
        """What is sent, as the server reads it."""
        if self.plain:
            return b"".join((_MULTI, *map(pack, self.plain), _EXEC))
        return pack(self.parts(text=text))

    @property
    def waits(self) -> bool:
        """Whether replicas are to confirm it. They have what stands before it then, the catalogue's entries too."""
        return self.writes and self.script is not CATALOGUE

    @property
    def replies(self) -> int:
        """How many replies there are to it."""
        return len(self.plain) + 2 if self.plain else 1

    def has_written(self, reply: Any) -> bool:
        """Whether the server has changed anything, after this reply to a command that writes."""
        return True

    def answer(self, reply: Any) -> None:
        """The server has said this."""
        if self.future.done():
            return
        try:
            result = self.decode(reply) if self.decode else reply
        except Exception as error:  # noqa: BLE001 - for whoever waits
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        if self.future.done():
            return
        if self.uncertain and self.writes:
            unknown = failures.unknown(str(error))
            unknown.__cause__ = error.__cause__ or error
            self.future.set_exception(unknown)
        else:
            self.future.set_exception(error)
