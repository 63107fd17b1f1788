"""Stored text as it may be shown: nothing in it can move the cursor, colour the terminal or break a line.

Nothing here imports rich or chatkeep, so that help and usage errors come at once.
"""

from __future__ import annotations

import json
import re
from typing import Any

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""What acts instead of being seen: controls but for tab and new line, bidirectional marks, lone surrogates."""


def visible(text: str) -> str:
    r"""The text with every control character as its escape, such as ``\x1b``. Tabs and new lines stay."""
    return _CONTROLS.sub(_escape, text.replace("\r\n", "\n"))


def in_one_line(text: str) -> str:
    """The text, visible, with every run of white space as one space."""
    return visible(" ".join(text.split()))


def quoted(name: str) -> str:
    """A name, such as a session id, in one line and so that no two names look alike: as JSON unless it is plain."""
    if name and name.isprintable() and name == name.strip() and not name.startswith('"'):
        return name
    return visible(json_text(name))


def shortened(text: str, limit: int) -> str:
    """The text in one line of at most `limit` characters."""
    line = in_one_line(text)
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def json_text(value: Any, *, ascii: bool = False, **options: Any) -> str:
    """One line of JSON, readable where that is safe; with `ascii` in ASCII alone. `options` are those of json.dumps."""
    text = json.dumps(value, ensure_ascii=ascii, **options)
    # Some of these are legal in JSON, and a terminal, UTF-8 or a reader of lines stumbles over them all the same.
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def counted(number: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """``3.2 ms`` or, below one, ``640 µs``."""
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else microseconds(seconds)


def microseconds(seconds: float) -> str:
    """``1,204 µs``."""
    return f"{seconds * 1e6:,.0f} µs"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
