"""A conversation as people read it: one message after the other, by role, with the tools it calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rich.text import Text

from chatkeep.messages import is_text_part, text_of
from chatkeep.records import Record

from .screen import Screen
from .text import in_one_line, json_text, visible

_STYLES = {"system": "yellow", "developer": "yellow", "user": "bold green", "assistant": "bold cyan", "tool": "magenta"}
_MARGIN = 17
"""The columns of the message's number and role."""
_NARROWEST = 30
"""With fewer columns than this beside the margin, what was said goes below it."""


class Brevity(NamedTuple):
    """How many lines of each message are shown; None is all of them."""

    said: int | None = None
    """Of what user and assistant say."""
    rest: int | None = None
    """Of instructions, tool calls and tool results, each."""


class Part(NamedTuple):
    """A piece of a message that begins on a line of its own."""

    body: str
    most: int | None = None
    """How many lines are shown."""
    lead: Text = Text()
    style: str = ""

    def lines(self, screen: Screen, width: int) -> list[Text]:
        """The piece in lines of `width` columns; where some are left out the last one says how long the whole is."""
        if self.most is None:
            whole = Text.assemble(self.lead, (visible(self.body), self.style))
            whole.expand_tabs(4)
            return list(whole.wrap(screen, width, overflow="fold"))
        body = in_one_line(self.body)
        start = Text.assemble(self.lead, (body[: (self.most + 1) * width], self.style))
        lines = list(start.wrap(screen, width, overflow="fold"))
        if len(lines) <= self.most:
            return lines
        end = Text(f"… {len(self.body):,} characters", "dim")
        last = lines[self.most - 1]
        last.rstrip()
        last.truncate(width - end.cell_len)
        return [*lines[: self.most - 1], last + end]


def print_message(screen: Screen, seq: int, message: dict[str, Any] | Record, brevity: Brevity) -> None:
    """Print one message, or a record that holds none, with its number and role in the margin."""
    role = message.role if isinstance(message, Record) else str(message["role"])
    parts = _of_record(message, brevity) if isinstance(message, Record) else _of_message(message, brevity)
    head = Text.assemble((f"{seq:>5} ", "dim"), (f"{in_one_line(role):<10} ", _STYLES.get(role, "bold")))
    indent, width = " " * _MARGIN, screen.text_width - max(_MARGIN, head.cell_len)
    if width < _NARROWEST:
        screen.print(head)
        indent, width = "  ", max(screen.text_width - 2, 10)
        head = Text(indent)
    for part in parts:
        for line in part.lines(screen, width):
            shown = head + line
            shown.rstrip()
            screen.print(shown, soft_wrap=True)
            head = Text(indent)


def _of_message(message: dict[str, Any], brevity: Brevity) -> list[Part]:
    role, content = message["role"], message.get("content")
    said = text_of(content)
    if not said and isinstance(message.get("refusal"), str):
        said = message["refusal"]
    parts = []
    if role in ("tool", "function"):
        name = in_one_line(str(message.get("name") or message.get("tool_call_id") or "result"))
        parts.append(Part(said, brevity.rest, Text(f"{name} → ", "dim")))
    elif said:
        parts.append(Part(said, brevity.said if role in ("user", "assistant") else brevity.rest))
    if isinstance(content, list):
        parts += [_of_other(part, brevity) for part in content if not is_text_part(part)]
    elif content is not None and not isinstance(content, str):
        parts.append(_of_other(content, brevity))
    parts += [_of_call(call, brevity) for call in _calls(message)]
    return parts or [Part("(nothing said)", style="dim")]


def _calls(message: dict[str, Any]) -> Iterable[Any]:
    calls = message.get("tool_calls")
    yield from calls if isinstance(calls, list) else () if calls is None else (calls,)
    if message.get("function_call") is not None:
        yield {"function": message["function_call"]}


def _of_call(call: Any, brevity: Brevity) -> Part:
    called = call.get("function", call.get("custom")) if isinstance(call, dict) else None
    if not isinstance(called, dict):
        return _of_other(call, brevity)
    arguments = called.get("arguments", called.get("input", ""))
    text = arguments if isinstance(arguments, str) else _json(arguments)
    name = in_one_line(str(called.get("name") or "?"))
    return Part(text, brevity.rest, Text.assemble(("calls ", "dim"), (name, "magenta"), " "))


def _of_other(value: Any, brevity: Brevity) -> Part:
    """What is neither text nor a call, such as an image."""
    return Part(_json(value), brevity.rest, style="dim")


def _of_record(record: Record, brevity: Brevity) -> list[Part]:
    note = f"(format {in_one_line(record.format)}, {len(record.payload):,} bytes: it cannot be read here)"
    said = [Part(record.text, brevity.said)] if record.text else []
    return [*said, Part(note, style="dim")]


def _json(value: Any) -> str:
    return json_text(value, default=str)
