"""How the command ends: its exit codes, and errors in one line that holds no secret."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable
from enum import IntEnum

from .text import in_one_line

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)


class Code(IntEnum):
    """The exit codes. The help of ``chatkeep`` lists them."""

    DONE = 0
    NOT_FOUND = 1
    USAGE = 2
    UNAVAILABLE = 3
    UNREADABLE = 4
    UNKNOWN = 5
    UNFORESEEN = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class CommandError(Exception):
    """The command ends here: what to say, with the mend, and the exit code."""

    def __init__(self, text: str, code: Code) -> None:
        super().__init__(text)
        self.code = code


class PipeClosedError(Exception):
    """Whoever read the output has had enough, as ``| head`` does: no failure, and nothing to say."""


def report(error: Exception, arguments: Iterable[str], *, debug: bool) -> Code:
    """Say on standard error what went wrong, and give the exit code. With `debug` the traceback comes first."""
    code, text = _judged(error)
    if debug:
        trace = "".join(traceback.format_exception(error))
        sys.stderr.write(without_secrets(trace, arguments))
    say(without_secrets(text, arguments))
    return code


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"chatkeep: {in_one_line(text)}\n")


def without_secrets(text: str, arguments: Iterable[str]) -> str:
    """The text without the passwords of any connection URL in the command line or in $CHATKEEP_URL."""
    for argument in (*arguments, os.environ.get("CHATKEEP_URL", "")):
        if found := _URL.search(argument):
            text = _scrubbed(text, found[0])
    return text


def _scrubbed(text: str, given: str) -> str:
    from chatkeep.errors import InvalidURLError  # noqa: PLC0415 - usage errors without a URL need no chatkeep
    from chatkeep.url import StoreURL  # noqa: PLC0415

    try:
        url = StoreURL.parse(given)
    except InvalidURLError:
        return _without(text, given, "(a connection URL)")
    return url.scrub(_without(text, given, str(url)))


def _without(text: str, given: str, shown: str) -> str:
    return text.replace(given, shown).replace(repr(given)[1:-1], shown)


def _judged(error: Exception) -> tuple[Code, str]:
    from chatkeep import errors  # noqa: PLC0415 - help and usage errors come without it

    if isinstance(error, CommandError):
        return error.code, str(error)
    if not isinstance(error, errors.ChatkeepError):
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Code.UNFORESEEN, f"unforeseen {reason}; `chatkeep --debug …` shows where it comes from"
    return _code(error), str(error)


def _code(error: Exception) -> Code:
    from chatkeep import errors  # noqa: PLC0415

    if isinstance(error, errors.MessageNotFoundError):
        return Code.NOT_FOUND
    if isinstance(error, errors.CorruptRecordError | errors.StoreFormatError):
        return Code.UNREADABLE
    if isinstance(error, errors.OutcomeUnknownError):
        return Code.UNKNOWN
    if isinstance(error, errors.StoreError | errors.ConflictError):
        return Code.UNAVAILABLE
    return Code.USAGE
