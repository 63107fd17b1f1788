"""The items of OpenAI's Responses API, of any shape, as messages: they come back equal."""

from __future__ import annotations

import json
from typing import Any

from chatkeep import Encoded, InvalidIdError, SerializationError
from chatkeep.arguments import check_id
from chatkeep.codecs import Links

from .objects import ObjectCodec

NO_ID = "__fake_id__"
"""What the SDK calls every item of a model that gives no ids."""


class ItemCodec(ObjectCodec):
    """For the items of the Responses API, of any shape; `unique_ids` says whether one with a known id is stored."""

    name = "openai-item"
    accepts = frozenset({"openai-item/1"})
    id_member = "id"
    kept = ("type", "role", "status", "call_id", "name", "namespace", "server_label", "approval_request_id", "approve")

    def __init__(self, *, unique_ids: bool = False) -> None:
        self._unique_ids = unique_ids

    def encode(self, message: dict[str, Any]) -> Encoded:
        try:
            return super().encode(message)
        except SerializationError:
            if not isinstance(message, dict):
                raise
            try:  # what json has a form for, such as a tuple, the SDK's own sessions keep in that form
                plain = json.loads(json.dumps(message, allow_nan=False))
            except (TypeError, ValueError, RecursionError):
                plain = None
            if plain is None:
                raise
            return super().encode(plain)

    def id(self, data: dict[str, Any]) -> str | None:
        value = super().id(data) if self._unique_ids else None
        try:
            return None if value in (None, NO_ID) else check_id(value, "an item's id")
        except InvalidIdError:  # it is stored with the item all the same
            return None

    def message(self, data: dict[str, Any]) -> dict[str, Any] | None:
        if "role" in data:
            return {"role": data["role"], "content": data.get("content")}
        if (answered := self.links(data).answered) and data.get("type") != "mcp_approval_response":
            return {"role": "tool", "tool_call_id": answered[0], "content": None}
        return {"role": "assistant", "content": None}

    def links(self, message: dict[str, Any]) -> Links:
        kind, call = message.get("type"), message.get("call_id")
        if kind == "mcp_approval_request":
            call = message.get("id")
        elif kind == "mcp_approval_response":
            call = message.get("approval_request_id")
        if not isinstance(kind, str) or not isinstance(call, str):
            return Links((), ())
        answers = kind.endswith(("_output", "_response"))
        return Links((), (call,)) if answers else Links((call,), ())

    def blank(self, message: dict[str, Any], text: str) -> dict[str, Any]:
        blanked = {name: message[name] for name in (self.id_member, *self.kept) if name in message}
        part = "output_text" if message.get("role") == "assistant" else "input_text"
        more: dict[str, Any] = {"annotations": []} if part == "output_text" else {}
        bodies: dict[str, Any] = {"arguments": json.dumps({"text": text}), "output": text, "input": text}
        bodies |= {"summary": [{"type": "summary_text", "text": text}]}
        bodies["content"] = [{"type": part, "text": text, **more}] if isinstance(message.get("content"), list) else text
        return blanked | {name: body for name, body in bodies.items() if name in message}
