"""`ChatkeepHistoryProvider`: an agent's history is kept in a chatkeep store."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from logging import getLogger
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from agent_framework import HistoryProvider, Message

from chatkeep import (
    InvalidIdError,
    Log,
    OutcomeUnknownError,
    ScopedStore,
    SerializationError,
    Session,
    SessionPage,
    Store,
    Window,
    open_store,
)
from chatkeep.arguments import NAME_BYTES, check_id, check_number
from chatkeep.records import BATCHES

from . import naming, replay
from .codec import MessageCodec, said, without_notes
from .given import narrowed, no_store, refuse_options
from .pairs import without_broken_pairs
from .run import Run, being_saved, run_id, saving, start_of_answers
from .search import INSTRUCTIONS, search, search_tool

if TYPE_CHECKING:
    from agent_framework import AgentSession, SessionContext, SupportsAgentRun


_CODEC = MessageCodec()
logger = getLogger("chatkeep")
SEARCH_LIMIT = 5
"""How many messages a search finds at most, unless told otherwise."""


class ChatkeepHistoryProvider(HistoryProvider):
    """Keeps an agent's history: ``Agent(client, context_providers=[ChatkeepHistoryProvider("sqlite:///chat.db")])``.

    `store` is a connection URL, a store or a view of one; left out, it is the URL that `chatkeep.open_store` takes. A
    store that you pass in is not closed here. `app`, `tenant` and `user` narrow it: no session of anybody else is
    found, whatever its id. `options` are those of `open_store`, for a URL.

    A session's history is its main log; a provider with a `source_id` of its own has the log of that name, so that
    several providers of one agent keep apart. `window`, with its reducers, says what of the history the model is shown;
    all of it is kept. `search_tool` gives the model a tool, ``search_history``, for what it is not shown. The other
    flags are those of the base class.

    A run is saved in one append, all of it or nothing, and what that costs does not depend on the history's length.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "chatkeep"

    def __init__(
        self,
        store: ScopedStore[Any] | str | None = None,
        *,
        source_id: str = DEFAULT_SOURCE_ID,
        app: str | EllipsisType = ...,
        tenant: str | EllipsisType = ...,
        user: str | EllipsisType = ...,
        window: Window[Message] | None = None,
        search_tool: bool = False,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            check_id(source_id, "source_id", NAME_BYTES),
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        if window is not None and not isinstance(window, Window):
            raise TypeError(f"window must be a Window, not {type(window).__name__}: window=Window(max_tokens=8000)")
        self.window = window
        self.search_tool = search_tool
        self._opened: Store[Any] | None = None
        if isinstance(store, ScopedStore):
            refuse_options(options)
            view: ScopedStore[Any] = store
        elif store is None or isinstance(store, str):
            view = self._opened = open_store(store, **options)
        else:
            raise no_store(store, type(self).__name__)
        self._view = narrowed(view, app=app, tenant=tenant, user=user)
        self._id = uuid.uuid4().hex
        self._unsettled: deque[_Save] = deque(maxlen=BATCHES)

    # The store behind it

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            await self._opened.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close what was opened here, for a URL; a store that was passed in stays open. May be called twice."""
        if self._opened is not None:
            await self._opened.close()

    def session(self, session_id: str | None) -> Session[Message]:
        """The session that a history belongs to: for its title, its state, its deletion. No I/O."""
        if session_id is None:
            raise InvalidIdError(
                "session_id is None, and a history is found again by its session's id alone: give the id; an agent is "
                "run with session=agent.create_session(), or with AgentSession(session_id=…) to go on with an earlier "
                "one"
            )
        return self._view.session(session_id, codec=_CODEC)

    def log(self, session_id: str | None) -> Log[Message]:
        """The log that holds a session's history: to page through, to edit, to look after. No I/O."""
        session = self.session(session_id)
        return session if self.source_id == self.DEFAULT_SOURCE_ID else session.log(self.source_id)

    async def list_sessions(
        self,
        *,
        limit: int = 100,
        after: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionPage:
        """A page of the scope's sessions, last written first; see `ScopedStore.list_sessions`."""
        return await self._view.list_sessions(limit=limit, after=after, title=title, metadata=metadata)

    async def clear(self, session_id: str | None) -> None:
        """Take out the session's history, in one step. The session stays, and so do other providers' histories."""
        await self.log(session_id).clear()

    async def search(self, session_id: str | None, query: str, *, limit: int = SEARCH_LIMIT) -> list[Message]:
        """Up to `limit` messages of the session that say most of the words; of equal ones the newest first."""
        if not isinstance(query, str):
            raise TypeError(f"query must be a str of the words to search for, not {type(query).__name__}")
        return await search(self.log(session_id), query, limit=check_number(limit, "limit", least=1))

    # What the framework calls

    async def before_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Show the model the history, and give it the tool to search it."""
        await super().before_run(agent=agent, session=session, context=context, state=state)
        if self.search_tool:
            context.extend_instructions(self.source_id, INSTRUCTIONS)
            context.extend_tools(self.source_id, [search_tool(self.log(context.session_id), limit=SEARCH_LIMIT)])

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """The history, oldest first: all of it, or what fits the window, which begins where a turn starts.

        A damaged message is treated as the store's `on_corrupt` says. Where it is left out, so are the calls and
        results that have lost each other by that.
        """
        log = self.log(session_id)
        history = await log.messages(window=self.window)
        readable: list[Any] = [*history]  # among them records, where on_corrupt is "raw"
        messages = [message for message in readable if isinstance(message, Message)]
        damaged = history.skipped > 0 or len(messages) < len(history)
        replay.mark(messages, history.end, replay.place_of(self.session(session_id), log))
        return without_broken_pairs(messages) if damaged else messages

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        batch_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Add what is new among the messages, in one append.

        Not new is what was read from this history, what has an id that it knows, and the beginning of a transcript
        that is handed over again; see `chatkeep_adapters.agent_framework.replay`. Equal content alone is no sign.

        By hand, all of it is added as it is under a `batch_id`, and once, however often it is sent again; see
        `Log.append`. After an `OutcomeUnknownError` the same messages can be saved again, and are stored once, too.
        """
        messages = _checked(messages)
        log, run = self.log(session_id), being_saved()
        if batch_id is not None:
            await naming.append(log, answers=messages, batch_id=batch_id, said=said)
            return
        place = replay.place_of(self.session(session_id), log)
        batch_id = uuid.uuid4().hex if run is None else f"{run.id}-{next(run.saves)}"
        start = len(messages) if run is None else start_of_answers(messages, run.context)
        given, answers = await self._new(log, place, messages[:start], run), messages[start:]
        asked = len(given) if run is None else _start_of_question(given)
        save = _Save(place, messages, batch_id)
        unsettled = next((each for each in self._unsettled if each.is_of(save)), None)
        save = unsettled or save
        append = partial(
            naming.append, log, given[:asked], given[asked:],
            batch_id=save.batch_id, said=said, without_known=replay.without_known,
        )  # fmt: skip
        try:
            await _without_what_cannot_be_stored(append, answers, log, str(session_id))
        except OutcomeUnknownError:
            if unsettled is None:
                self._unsettled.append(save)
            raise
        if unsettled in self._unsettled:
            self._unsettled.remove(save)

    async def after_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Save a run that has succeeded. Called again for the same response, it saves nothing twice."""
        providers = getattr(agent, "context_providers", ())
        histories = {provider.source_id for provider in providers if isinstance(provider, HistoryProvider)}
        beside = frozenset(set(context.context_messages) - histories)
        with saving(Run(context, run_id(context, self._id), count(), beside)):
            await super().after_run(agent=agent, session=session, context=context, state=state)

    # What is new, and how it is stored

    async def _new(
        self, log: Log[Message], place: replay.Place, given: list[Message], run: Run | None = None
    ) -> list[Message]:
        """`given` without what was read from the log, and without the transcript that it may begin with."""
        beside = run.beside if run is not None else frozenset()
        known, whole = await replay.read(log, given, place)
        rest = [i for i, message in enumerate(given) if i not in known and replay.source_of(message) not in beside]
        if whole or (run is None and len(rest) < 2):
            again: set[int] = set()
        else:
            again = await replay.repeated(log, [given[index] for index in rest], without=beside)
        if len(rest) - 1 in again:  # nothing new stands behind it:
            if run is None:  # it is the same turn, saved once more
                again = set()
            elif not replay.by_the_agent(given[rest[-1]]):  # it is the same question, asked once more
                again.remove(len(rest) - 1)
        known.update(rest[index] for index in again)
        return [message for index, message in enumerate(given) if index not in known]


class _Save(NamedTuple):
    place: replay.Place
    messages: list[Message]
    batch_id: str

    def is_of(self, other: _Save) -> bool:
        """Whether both are of the very same objects."""
        return self.place == other.place and list(map(id, self.messages)) == list(map(id, other.messages))


def _start_of_question(given: Sequence[Message]) -> int:
    """Where that begins which the agent was asked: all behind the last message of an agent."""
    return 1 + max((index for index, message in enumerate(given) if replay.by_the_agent(message)), default=-1)


async def _without_what_cannot_be_stored(
    append: Callable[[list[Message]], Awaitable[None]], answers: list[Message], log: Log[Message], session_id: str
) -> None:
    """Append without what a client has noted beside an answer and nobody can store, as the framework leaves it out.

    The agent has answered, and the turn would be lost for a note. What is said in a message is no note, and what the
    agent was given is its caller's: the error.
    """

    def stored(note: dict[str, Any]) -> bool:
        try:
            log.serializer.dumps(note)
        except SerializationError:
            return False
        return True

    try:
        await append(answers)
    except SerializationError as error:
        if ".additional_properties" not in error.path:
            raise
        await append([without_notes(message, stored) for message in answers])
        logger.warning("session %r: a note beside an answer cannot be stored, and was left out: %s", session_id, error)


def _checked(messages: Sequence[Message]) -> list[Message]:
    """The messages as a list, or a TypeError that says what is none."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(
            f"save_messages takes a list of messages, not {type(messages).__name__}: save_messages(id, [message])"
        )
    checked = list(messages)
    for place, message in enumerate(checked):
        if not isinstance(message, Message):
            raise TypeError(
                f"messages[{place}] must be an agent_framework.Message, not {type(message).__name__}: "
                'Message("user", ["Where is my bag?"])'
            )
    return checked
