"""The messages of the framework's betas, as they are stored: what their ``ChatMessage.to_dict()`` gives."""

from __future__ import annotations

from typing import Any

import agent_framework

from chatkeep import CorruptRecordError, Encoded, SerializationError
from chatkeep.codecs import Links, refusal
from chatkeep.records import Record

from .naming import is_unnamed, mark_unnamed

if not hasattr(agent_framework, "ChatMessage"):
    raise ImportError(
        "ChatkeepChatMessageStore is for the betas of agent-framework-core, such as 1.0.0b251120, whose messages are "
        "ChatMessages; with 1.x use ChatkeepHistoryProvider: Agent(client, context_providers=[…])"
    )
# Type checkers see the newest version of the framework, which has none of these.
ChatMessage: Any = agent_framework.ChatMessage
_CALL: Any = vars(agent_framework)["FunctionCallContent"]
_RESULT: Any = vars(agent_framework)["FunctionResultContent"]
_APPROVAL: Any = vars(agent_framework)["FunctionApprovalResponseContent"]
_TEXT: Any = vars(agent_framework)["TextContent"]


def role_of(message: Any) -> str:
    """The role as a text: the betas have a class for it."""
    role = getattr(message, "role", None)
    return str(getattr(role, "value", role))


def said(message: Any) -> tuple[str, list[Any]]:
    """Who said what: what two messages have in common that say the same."""
    return role_of(message), [content.to_dict() for content in message.contents]


class BetaMessageCodec:
    """For the ``agent_framework.ChatMessage`` of the betas."""

    name = "agent-framework-beta"
    version = 1
    accepts = frozenset({"agent-framework-beta/1"})

    def encode(self, message: Any) -> Encoded:
        if not isinstance(message, ChatMessage):
            raise SerializationError(
                f"$: a message here is an agent_framework.ChatMessage, not {type(message).__name__}: "
                'ChatMessage(role="user", text="Where is my bag?")'
            )
        role = role_of(message)
        asked = any(isinstance(content, _RESULT | _APPROVAL) for content in message.contents)
        return Encoded(
            role,
            None if is_unnamed(message) else message.message_id or None,
            role == "user" and not asked,
            message.text or None,
            message.to_dict(),
        )

    def decode(self, data: Any, record: Record) -> Any:
        if record.format not in self.accepts:
            raise CorruptRecordError(refusal(self, record.format), record=record)
        try:
            message = ChatMessage.from_dict(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptRecordError(f"is no ChatMessage of the Agent Framework: {error!r}", record=record) from error
        message.message_id = message.message_id or record.id
        if record.id is None and message.message_id:
            mark_unnamed(message)
        return message

    def links(self, message: Any) -> Links:
        made = [content.call_id for content in message.contents if isinstance(content, _CALL)]
        answered = [content.call_id for content in message.contents if isinstance(content, _RESULT)]
        return Links(tuple(id for id in made if id), tuple(id for id in answered if id))

    def blank(self, message: Any, text: str) -> Any:
        return ChatMessage(
            role=message.role,
            contents=[_blank(content, text) for content in message.contents],
            author_name=message.author_name,
            message_id=message.message_id,
        )


def _blank(content: Any, text: str) -> Any:
    if isinstance(content, _CALL):
        return _CALL(call_id=content.call_id, name=content.name, arguments={"text": text})
    if isinstance(content, _RESULT):
        return _RESULT(call_id=content.call_id, result=text)
    return _TEXT(text)
