"""`ChatkeepChatMessageStore`: a thread's messages, for the betas of the Agent Framework.

In the betas (such as ``agent-framework-core==1.0.0b251120``) an agent makes one message store for each thread, with
``chat_message_store_factory``; 1.x has history providers in their place.

What is serialised of a thread is its key, never its messages. The betas ask a store for its state, and then keep
nothing of that but the messages in it: `AgentThread.serialize` would lose the key. So the state also holds one message
without contents that carries it, and a store that gets nothing but such a message before anything else resumes that
thread. That is what ``agent.deserialize_thread`` does.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from types import EllipsisType, TracebackType
from typing import Any, Self

from chatkeep import ConfigError, CorruptRecordError, ScopedStore, Session, Window
from chatkeep.arguments import check_id
from chatkeep.factory import store_url
from chatkeep.url import StoreURL

from . import naming
from .beta_codec import BetaMessageCodec, ChatMessage, role_of, said
from .given import no_store, refuse_options
from .shared import SharedStore, shared_store

_CODEC = BetaMessageCodec()
_CARRIER = "chatkeep_thread"
"""The additional property of the message that carries a thread's state through the framework."""


class ChatkeepChatMessageStore:
    """The messages of one thread, in a session of a store.

    ::

        ChatAgent(client, chat_message_store_factory=lambda: ChatkeepChatMessageStore("sqlite:///chat.db"))

    `store` is a connection URL, a store or a view of one; left out, it is the URL that `chatkeep.open_store` takes.
    All threads of an event loop that name one URL with the same options share one store, which is closed with the last
    of them that is closed; a store that you pass in is not closed. `app`, `tenant` and `user` narrow it. `options` are
    those of `open_store`, for a URL.

    The session's id is `thread_id`, a new one if not given, behind `key_prefix` if there is one. Nothing is written
    before the first message. `max_messages` keeps whole turns, and trims in the same step as it adds. `window` says how
    much of the history `list_messages` gives.

    A state holds thread id, prefix, limit and the database's address, without user, password and options. When one is
    read, address and credentials are those that this store was configured with: a state that names another address is
    a `ConfigError`, unless `allow_other_address` says that the messages have moved. Even then it is not followed. A
    prefix that is configured must be the state's, and a limit that is configured is the one that counts.
    """

    def __init__(
        self,
        store: ScopedStore[Any] | str | None = None,
        *,
        thread_id: str | None = None,
        key_prefix: str | None = None,
        max_messages: int | None = None,
        window: Window[Any] | None = None,
        app: str | EllipsisType = ...,
        tenant: str | EllipsisType = ...,
        user: str | EllipsisType = ...,
        allow_other_address: bool = False,
        **options: Any,
    ) -> None:
        self._given: ScopedStore[Any] | None = store if isinstance(store, ScopedStore) else None
        self._url: StoreURL | None = None
        if store is None or isinstance(store, str):
            self._url = store_url(store)
        elif isinstance(store, ScopedStore):
            refuse_options({*options, *(() if max_messages is None else ("max_messages",))})
        else:
            raise no_store(store, type(self).__name__)
        self.thread_id = check_id(thread_id, "thread_id") if thread_id is not None else uuid.uuid4().hex
        self.key_prefix = self._own_prefix = None if key_prefix is None else check_id(key_prefix, "key_prefix")
        self.max_messages = self._own_limit = max_messages
        self.window = window
        self._options = options
        self._narrowed = {
            name: value for name, value in (("app", app), ("tenant", tenant), ("user", user)) if value is not ...
        }
        self._allow_other_address = allow_other_address
        self._shared: SharedStore | None = None
        self._used = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of the store. Other threads' stores on the same URL go on. May be called twice."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release(self)

    @property
    def session_id(self) -> str:
        """The id of the chatkeep session that holds the thread. No two prefixes have a session in common."""
        if self.key_prefix is None:
            return self.thread_id
        return f"{self.key_prefix.replace('%', '%25').replace(':', '%3A')}:{self.thread_id}"

    def session(self) -> Session[Any]:
        """The session that holds the thread: for its title, its state, its deletion. Inside an event loop; no I/O."""
        view = self._given
        if view is None:
            if self._shared is None:
                limit = {} if self.max_messages is None else {"max_messages": self.max_messages}
                url = self._url.text if self._url is not None else None
                self._shared = shared_store(url, {**self._options, **limit}, self)
            view = self._shared.store
        narrowed: dict[str, Any] = self._narrowed
        return (view.scoped(**narrowed) if narrowed else view).session(self.session_id, codec=_CODEC)

    # The protocol of the framework

    async def add_messages(self, messages: Sequence[Any], **kwargs: Any) -> None:
        """Add messages at the end, all of them or none.

        One of a caller's with an id that the thread knows is not stored again if it says the same.
        """
        messages = list(messages)
        if not self._used and len(messages) == 1 and (carried := _carried(messages[0])) is not None:
            await self.update_from_state(carried)
            return
        self._used = True
        if messages:
            answers = not any(role_of(each) in ("user", "system") for each in messages)  # the framework adds them alone
            question = [] if answers else messages
            await naming.append(
                self.session(), question=question, answers=messages if answers else [], said=said, batch_id=None
            )

    async def list_messages(self) -> list[Any]:
        """The thread's messages, oldest first: all of them, or what fits the window."""
        self._used = True
        return list(await self.session().messages(window=self.window))

    async def serialize(self, **kwargs: Any) -> dict[str, Any]:
        """The thread's key, as JSON-like data: no messages, no password. Nothing is read or written."""
        state = {
            "thread_id": self.thread_id,
            "url": None if self._url is None else _address(self._url),
            "key_prefix": self.key_prefix,
            "max_messages": self.max_messages,
        }
        carrier = ChatMessage(role="system", contents=[], additional_properties={_CARRIER: state})
        return {**state, "messages": [carrier.to_dict()]}

    @classmethod
    async def deserialize(cls, serialized_store_state: Any, **kwargs: Any) -> Self:
        """A store for the thread of a state; the keywords are those of the class, such as ``store=`` and ``user=``."""
        store = cls(**kwargs)
        await store.update_from_state(serialized_store_state)
        return store

    async def update_from_state(self, serialized_store_state: Any, **kwargs: Any) -> None:
        """Become the store of a state's thread. An empty state changes nothing.

        It may also be that of the framework's Redis store: ``thread_id``, ``redis_url``, ``key_prefix`` and
        ``max_messages``. A `CorruptRecordError` if it is none, a `ConfigError` if it names another address or prefix.
        """
        state = serialized_store_state
        if not state:
            return
        if not isinstance(state, Mapping) or not isinstance(state.get("thread_id"), str):
            raise CorruptRecordError("this is no state of a message store: it has no text as its 'thread_id'")
        self._check_address(state.get("url") or state.get("redis_url"))
        prefix, limit = state.get("key_prefix"), state.get("max_messages")
        thread_id = check_id(state["thread_id"], "the state's thread_id")
        prefix = None if prefix is None else check_id(prefix, "the state's key_prefix")
        if self._own_prefix not in (None, prefix):
            raise ConfigError(
                f"the state names the key prefix {prefix!r}, and this message store is configured with "
                f"{self._own_prefix!r}: configure it with that of the state, or with none, if the thread is its own"
            )
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise CorruptRecordError(f"the state's max_messages must be an int of 0 or more, not {limit!r}")
        await self.aclose()
        self.thread_id, self.key_prefix = thread_id, prefix
        if self._given is None:
            self.max_messages = limit if self._own_limit is None else self._own_limit
        self._used = True

    async def serialize_state(self, **kwargs: Any) -> dict[str, Any]:
        """`serialize`, by the name that the framework's documentation gives it."""
        return await self.serialize(**kwargs)

    async def deserialize_state(self, serialized_store_state: Any, **kwargs: Any) -> None:
        """`update_from_state`, by the name that the framework's documentation gives it."""
        await self.update_from_state(serialized_store_state, **kwargs)

    async def clear(self) -> None:
        """Take out the thread's messages, in one step. The session stays."""
        await self.session().clear()

    def _check_address(self, named: object) -> None:
        """Refuse a state of another address: it could be a way to somebody else's database."""
        if named is None or self._allow_other_address:
            return
        if not isinstance(named, str):
            raise CorruptRecordError(f"the state's url must be a text, not of type {type(named).__name__}")
        address, own = _address(StoreURL.parse(named)), None if self._url is None else _address(self._url)
        if address != own:
            raise ConfigError(
                f"the state names the address {address}, and this message store is configured with "
                f"{own or 'a store that was passed in, whose address it does not know'}: if the messages have moved "
                "here, say allow_other_address=True"
            )


def _address(url: StoreURL) -> str:
    """Which database it is: what may change meanwhile, such as a password or a ttl, is no part of it."""
    return f"{url.scheme}://{url.authority.rpartition('@')[2]}{url.path}"


def _carried(message: Any) -> Mapping[str, Any] | None:
    """The state in a message that does nothing but carry one."""
    properties = getattr(message, "additional_properties", None) or {}
    state = properties.get(_CARRIER)
    carries = (
        isinstance(state, Mapping) and role_of(message) == "system" and not message.contents and len(properties) == 1
    )
    return state if carries else None
