"""What callers pass, checked before any query is built."""

from __future__ import annotations

from .errors import InvalidIdError

ID_BYTES = 1024
"""The longest session id, scope field or message id, in bytes of UTF-8."""
NAME_BYTES = 512
"""The longest log name, state key or metadata key, in bytes of UTF-8."""
MOST = 2**53
"""As good as endless: larger numbers are taken for this one, which every database can hold."""


def check_id(value: object, what: str, limit: int = ID_BYTES) -> str:
    """`value` if it is a non-empty str of at most `limit` bytes in UTF-8, else an `InvalidIdError` naming `what`."""
    if not isinstance(value, str):
        raise InvalidIdError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidIdError(f"{what} must not be empty")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidIdError(f"{what} holds a lone surrogate at {error.start}, which UTF-8 cannot encode") from error
    if size > limit:
        raise InvalidIdError(f"{what} is {size} bytes long; at most {limit} are allowed")
    return str(value)


def check_number(value: object, what: str, *, least: int = 0) -> int:
    """`value` if it is an int of `least` or more, else a `ValueError` naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} must be an int of {least} or more, not {value!r}")
    return min(value, MOST)


def check_position(value: object, *, least: int) -> int:
    """`value` if it is an int of `least` or more, else a `ValueError` that says what a position is."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        mend = "; Cursor.parse(text) reads what str(cursor) gave" if isinstance(value, str) else ""
        raise ValueError(f"a position is a Cursor or an int of {least} or more (see history.seqs), not {value!r}{mend}")
    return min(value, MOST)
