"""``chatkeep add``: messages from standard input, all of them or none."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from chatkeep import ChatkeepError, ConflictError, OpenAIChatCodec, StoreError

from .failures import Code, CommandError
from .screen import Screen
from .store import Message, Place, opened
from .text import counted, in_one_line, quoted

Numbered = tuple[int, Message]
"""The number of a line and a message of it."""

_INDEX = re.compile(r"messages\[(\d+)\]")
_FORM = 'a line is one message, such as {"role": "user", "content": "Hello"}, or {"messages": [...]}'


async def add_messages(place: Place, messages: list[Numbered], *, batch_id: str | None) -> None:
    """Append the messages in one atomic step, and say how many were new."""
    store = opened(place.url)
    log = place.messages(store)
    async with store:
        try:
            appended = await log.append([message for _, message in messages], batch_id=batch_id)
        except (StoreError, ConflictError):
            raise
        except ChatkeepError as error:
            raise _with_line(error, messages) from error
        held = await log.count()
    known = len(messages) - appended.added
    before = f" ({known:,} of {len(messages):,} were stored before)" if known else ""
    name = quoted(place.session) + (f", log {quoted(place.log)}" if place.log is not None else "")
    Screen().put_line(
        f"added {counted(appended.added, 'message')}{before} to {name} in {in_one_line(store.connection.name)}; "
        f"it holds {held:,}"
    )


def read_input() -> list[Numbered]:
    """The messages of standard input. Not to be called in an event loop, where Ctrl-C could not end it."""
    if sys.stdin.isatty():
        sys.stderr.write("One message a line, as JSON; Ctrl-D ends.\n")
    return list(read_messages(sys.stdin.buffer))


def read_messages(lines: Iterable[bytes]) -> Iterator[Numbered]:
    """Each message with its line. The first line that holds none ends it with an error that names the line."""
    codec = OpenAIChatCodec()
    empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        empty = False
        value = _value(line, number)
        if isinstance(value, dict) and "role" not in value and "messages" in value:
            if not isinstance(value["messages"], list):
                _refuse(number, f'"messages" is no list: {_FORM}')
            messages = value["messages"]
        else:
            messages = [value]
        for message in messages:
            if not isinstance(message, dict):
                _refuse(number, f"{_kind(message)} is no message: {_FORM}")
            try:
                codec.encode(message)
            except ChatkeepError as error:
                _refuse(number, str(error))
            yield number, message
    if empty:
        raise CommandError(f"standard input holds no messages: {_FORM}", Code.USAGE)


def _value(line: bytes, number: int) -> Any:
    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} has no place in JSON; use null or a text")

    try:
        text = line.rstrip(b"\r\n").decode()  # without its end, behind which a place would be one of the next line
        if number == 1:
            text = text.removeprefix("\ufeff")
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        _refuse(number, "it is nested too deeply to be read")
    except UnicodeDecodeError as error:
        _refuse(number, f"it is no UTF-8, from byte {error.start + 1} on: convert it, such as with iconv")
    except ValueError as error:
        reason = str(error)
        if isinstance(error, json.JSONDecodeError):
            reason = f"{error.msg} at column {error.colno}"
        _refuse(number, f"it is no JSON ({reason}): {_FORM}; `jq -c` puts a value that is spread out on one line")


def _refuse(number: int, reason: str) -> NoReturn:
    raise CommandError(f"line {number} of standard input: {reason}. Nothing was written", Code.USAGE)


def _with_line(error: ChatkeepError, messages: list[Numbered]) -> CommandError | ChatkeepError:
    """The error with the line of the message that it names."""
    found = _INDEX.search(str(error))
    if found is None:
        return error
    line = messages[int(found[1])][0]
    return CommandError(f"line {line} of standard input: {error}. Nothing was written", Code.USAGE)


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
