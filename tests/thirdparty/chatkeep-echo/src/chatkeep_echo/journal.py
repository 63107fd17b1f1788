"""The journal: a file with one line for every step, in the order in which the steps were taken.

A line is JSON and says all that the step needs to be taken once more with the same result: what was asked for, the
time, and the life that would begin. So whoever has read the same lines holds the same data. A step has been taken once
the newline behind it is on the disk; what a writer that died has left behind the last newline never was a step.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from chatkeep import OutcomeUnknownError, StoreError
from chatkeep.errors import StoreFormatError
from chatkeep.records import Key, Write

KIND, FORM = b'{"journal": "chatkeep-echo", "form": ', 1
HEADER = KIND + b"%d}\n" % FORM
"""The first line of every journal."""
PAUSE = 0.001
"""Seconds between two attempts to lock the file: waiting for it in the system could not be given up."""


class Step(NamedTuple):
    """A write to the session at `key`, or, without one, the removal of what is in and below the key's scope."""

    key: Key
    write: Write | None = None
    older_than: float | None = None
    now: float = 0.0
    life: str = ""


_steps = TypeAdapter(Step, config=ConfigDict(val_json_bytes="base64"))


def encoded(step: Step) -> bytes:
    """The step's line. Fields go by name, and only where they say something: a later core may have more of them."""
    return json.dumps(_plain(step)).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if (defaults := getattr(value, "_field_defaults", None)) is not None:
        fields = value._asdict().items()
        return {name: _plain(field) for name, field in fields if field != defaults.get(name, ...)}
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def decoded(line: bytes, path: str) -> Step:
    """The step that a line says, or a `StoreError`."""
    try:
        return _steps.validate_json(line)
    except ValidationError as error:
        start = line[:80].decode(errors="replace")
        raise StoreError(f"{path!r} is damaged in the line {start!r}…: restore a backup of it") from error


def check_header(start: bytes, path: str) -> None:
    """A `StoreError` unless a file that begins like this is a journal, or one that its first writer has just begun."""
    if HEADER.startswith(start[: len(HEADER)]):
        return
    if start.startswith(KIND):
        raise StoreFormatError(f"{path!r} was written by a newer chatkeep-echo: pip install --upgrade chatkeep-echo")
    raise StoreError(f"{path!r} is no journal of chatkeep-echo: choose another file")


@contextmanager
def locked(path: str, *, writing: bool, deadline: float) -> Iterator[FileIO]:
    """The file at `path`, shared with other readers or, for writing, with nobody.

    A `BlockingIOError` if it is not free by `deadline`, on the monotonic clock.
    """
    with open(path, "r+b" if writing else "rb", buffering=0) as file:  # noqa: PTH123 - says that it is a FileIO
        while True:
            try:
                fcntl.flock(file, (fcntl.LOCK_EX if writing else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing does not unlock it where a child was forked meanwhile


def append(file: FileIO, place: int, line: bytes) -> int:
    """Put `line` behind the last step, which ends at `place`; where it ends now. What is torn there is cut off first.

    On return it is on the disk. After an `OSError` it is not in the file.
    """
    rest = memoryview(line if place else HEADER + line)
    end = place + len(rest)
    file.truncate(place)
    file.seek(place)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        file.truncate(place)
        raise
    try:
        os.fsync(file.fileno())
    except OSError as error:
        raise OutcomeUnknownError(f"the disk did not confirm a write: {error}; it may be stored") from error
    return end
