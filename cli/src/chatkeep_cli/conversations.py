"""The recorded conversations that come with the package; ``data/NOTICE.md`` says whose they are."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, NamedTuple

from chatkeep import OpenAIChatCodec

Message = dict[str, Any]


class Conversation(NamedTuple):
    id: str
    messages: list[Message]

    @property
    def turns(self) -> list[list[Message]]:
        """The messages from one turn's start to the next; what stands before the first one belongs to it."""
        codec = OpenAIChatCodec()
        turns: list[list[Message]] = [[]]
        begun = False
        for message in self.messages:
            starts_turn = codec.encode(message).starts_turn
            if starts_turn and begun:
                turns.append([])
            begun = begun or starts_turn
            turns[-1].append(message)
        return turns

    def batch_id(self, turn: int) -> str:
        """The same at each run, so that a turn is stored once."""
        return f"{self.id}/turn-{turn}"

    @property
    def title(self) -> str:
        """What the user said first."""
        return next(str(message["content"]) for message in self.messages if message["role"] == "user")

    @property
    def state(self) -> dict[str, Any]:
        """What an agent would keep beside the messages: the customer, the reservations, the tools that were called."""
        calls = [call["function"] for message in self.messages for call in message.get("tool_calls") or ()]
        arguments = [json.loads(call["arguments"]) for call in calls]
        return {
            "customer": next((each["user_id"] for each in arguments if "user_id" in each), None),
            "reservations": _once(each["reservation_id"] for each in arguments if "reservation_id" in each),
            "tools": _once(call["name"] for call in calls),
        }


def conversations() -> list[Conversation]:
    """All of them, in the order of their ids."""
    text = files(__package__).joinpath("data", "airline.jsonl").read_text(encoding="utf-8")
    return [Conversation(**json.loads(line)) for line in text.splitlines()]


def _once(names: Any) -> list[str]:
    return list(dict.fromkeys(names))
