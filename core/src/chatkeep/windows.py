"""Windows: the newest part of a log that a model can take, cut where a turn starts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from .arguments import check_number
from .codecs import MessageCodec, is_tool_result
from .errors import WindowError

M = TypeVar("M")

Reducer = Callable[[list[M], MessageCodec[M]], "list[M] | Awaitable[list[M]]"]
"""``reducer(messages, codec)``, or an async function: what to put in the place of the messages, oldest first.

The codec names a message's role, links calls to answers and blanks bodies, for any kind of message. A reducer neither
changes the messages it is given nor the list.
"""

_BODIES = frozenset({"content", "text"})
_WHOLE_BODIES = frozenset({"arguments", "input", "output", "result"})
_NO_BODIES = frozenset({"metadata", "additional_properties", "additional_kwargs", "response_metadata"})
CHARACTERS_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4


@dataclass(frozen=True)
class Window(Generic[M]):
    """How much of a log's end to take: `max_messages`, `max_tokens` or both, each of them kept.

    ``count(message)`` gives a message's tokens; the default is `estimate_tokens`. `reducers` run in order over the
    whole log before it is cut. It is cut between turns, so that there may be fewer messages than `max_messages`. A
    system message in front belongs to no turn and is the first to be cut: keep the prompt with the agent, not in the
    log. If not even the newest turn fits, `overflow` says what to do: "error" raises a WindowError, "keep" returns that
    turn whole and over the budget, "empty" returns nothing. A budget of 0 is empty.
    """

    max_messages: int | None = None
    max_tokens: int | None = None
    count: Callable[[M], int] | None = None
    reducers: Sequence[Reducer[M]] = ()
    overflow: Literal["error", "keep", "empty"] = "error"

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_tokens"):
            limit: Any = getattr(self, name)
            if limit is not None:
                check_number(limit, name)
        if self.max_messages is None and self.max_tokens is None and not self.reducers:
            raise ValueError(
                "a Window needs max_messages=, max_tokens= or reducers=; without any of them, leave it out"
            )
        if self.count is not None and not callable(self.count):
            raise ValueError(f"count must be a function from a message to its tokens, not {self.count!r}")
        if self.count is not None and self.max_tokens is None:
            raise ValueError("count= is used for max_tokens= alone, which is not set")
        if callable(self.reducers) or not all(callable(reducer) for reducer in self.reducers):
            raise ValueError("reducers must be a sequence of functions, such as [drop_tool_bodies()]")
        if self.overflow not in ("error", "keep", "empty"):
            raise ValueError(f'overflow must be "error", "keep" or "empty", not {self.overflow!r}')

    def tokens(self, message: M, codec: MessageCodec[M]) -> int:
        """How many tokens a message counts."""
        if self.count is None:
            return estimate_tokens(message if isinstance(message, Mapping) else codec.encode(message).data)
        tokens: Any = self.count(message)
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            raise ValueError(f"count must return an int of 0 or more, and it returned {tokens!r}")
        return tokens


def check_window(window: object) -> None:
    """A `TypeError` for a budget that is no Window."""
    if not isinstance(window, Window):
        raise TypeError(f"window must be a Window, not {type(window).__name__}: window=Window(max_tokens=8000)")


class Fitter(Generic[M]):
    """Finds where a window starts, from the newest message backwards, so that no more is read than needed.

    Add messages newest first until `done` or until the log's beginning; then `taken` is the answer.
    """

    def __init__(self, window: Window[M], codec: MessageCodec[M]) -> None:
        self._window = window
        self._codec = codec
        self._best = 0
        self._newest_turn: int | None = None
        self.messages = 0
        """How many were added."""
        self.tokens = 0
        """How many they count; 0 if the window has no `max_tokens`."""

    def add(self, message: M, starts_turn: bool) -> None:
        """Add the next older message."""
        self.messages += 1
        if self._window.max_tokens is not None:
            self.tokens += self._window.tokens(message, self._codec)
        if starts_turn:
            if self._newest_turn is None:
                self._newest_turn = self.messages
            if not self.exceeded:
                self._best = self.messages

    @property
    def exceeded(self) -> bool:
        """Whether the messages added are over the budget."""
        most, tokens = self._window.max_messages, self._window.max_tokens
        return (most is not None and self.messages > most) or (tokens is not None and self.tokens > tokens)

    @property
    def done(self) -> bool:
        """Whether older messages cannot change the answer."""
        if self._window.max_messages == 0 or self._window.max_tokens == 0:
            return True
        return self.exceeded and (bool(self._best) or self._window.overflow != "keep" or self._newest_turn is not None)

    @property
    def full(self) -> bool:
        """Whether a turn that fits was found and one more message would be one too many."""
        return bool(self._best) and self._window.max_messages is not None and self.messages >= self._window.max_messages

    def fitting(self, *, complete: bool) -> int | None:
        """How many of the newest messages fit and begin where a turn starts; None if no turn start fits.

        `complete` says that the log's first message was added: then all of them, if they fit.
        """
        if self._window.max_messages == 0 or self._window.max_tokens == 0:
            return 0
        if complete and not self.exceeded:
            return self.messages
        return self._best or None

    def taken(self, *, complete: bool) -> int:
        """How many of the newest messages make the window: `fitting`, or what its `overflow` says if none does."""
        fitting = self.fitting(complete=complete)
        if fitting is not None:
            return fitting
        if self._window.overflow == "empty":
            return 0
        if self._window.overflow == "keep":
            return self.messages if self._newest_turn is None else self._newest_turn
        raise WindowError(self._words())

    def _words(self) -> str:
        window = self._window
        size = "newest message" if self.messages == 1 else f"newest {self.messages} messages"
        verb = "is" if self.messages == 1 else "are"
        over = []
        if window.max_messages is not None and self.messages > window.max_messages:
            over.append(f"max_messages={window.max_messages}")
        if window.max_tokens is not None:
            tokens = f"{'about ' if window.count is None else ''}{self.tokens} token{'' if self.tokens == 1 else 's'}"
            size = f"{size}, {tokens},"
            if self.tokens > window.max_tokens:
                over.append(f"max_tokens={window.max_tokens}")
        return (
            f"the newest turn does not fit the window: its {size} {verb} over {' and '.join(over)}. "
            "Raise the budget, shorten the turn with reducers=[drop_tool_bodies()], or use overflow='keep' or 'empty'"
        )


def cut(
    messages: Sequence[M], starts: Sequence[bool], *, window: Window[M], codec: MessageCodec[M], complete: bool
) -> int | None:
    """The index at which the window starts in `messages`, oldest first; ``len(messages)`` if its budget is 0.

    ``starts[i]`` says whether ``messages[i]`` starts a turn, `complete` whether the first is the log's first. It is 0
    if all is there and fits, else the earliest turn start from which everything fits; None if there is none. Neither
    the reducers nor `overflow` are looked at.
    """
    fitter = Fitter(window, codec)
    for message, starts_turn in zip(reversed(messages), reversed(starts), strict=True):
        if fitter.done:
            break
        fitter.add(message, starts_turn)
    size = fitter.fitting(complete=complete and fitter.messages == len(messages))
    return None if size is None else len(messages) - size


async def reduced(messages: list[M], *, window: Window[M], codec: MessageCodec[M]) -> list[M]:
    """The messages after the window's reducers, which get a list of their own each."""
    for reducer in window.reducers:
        result: Any = reducer(list(messages), codec)
        if inspect.isawaitable(result):
            result = await result
        if not isinstance(result, list):
            name = getattr(reducer, "__name__", type(reducer).__name__)
            raise TypeError(
                f"the reducer {name} must return a list of messages, and it returned {type(result).__name__}"
            )
        messages = result
    return messages


def estimate_tokens(message: Any) -> int:
    """About how many tokens a message takes: 4 characters each, and 4 more for the message.

    Counted are texts, tool-call arguments and tool results, wherever they stand in the message's JSON object; not ids,
    names, metadata, or images and other files. It is a rough estimate for English prose and JSON; give `Window` a
    `count` for your model's own tokenizer, and for other languages.
    """
    data = message if isinstance(message, Mapping) else getattr(message, "data", message)
    return TOKENS_PER_MESSAGE + -(-_characters(data, False) // CHARACTERS_PER_TOKEN)


def _characters(value: Any, counted: bool) -> int:
    if isinstance(value, str):
        return len(value) if counted else 0
    if isinstance(value, Mapping):
        total = 0
        for key, item in value.items():
            if key in _WHOLE_BODIES:
                total += len(item) if isinstance(item, str) else len(str(item))
            elif key not in _NO_BODIES:
                total += _characters(item, key in _BODIES)
        return total
    if isinstance(value, list | tuple):
        return sum(_characters(item, counted) for item in value)
    return 0


def drop_tool_bodies(keep_last: int = 1, replacement: str = "[dropped]") -> Reducer[Any]:
    """A reducer that puts `replacement` in the place of what tools returned, but for the newest `keep_last` results.

    Calls and answers all stay, so that none is left without the other. A message that holds tool results beside words
    of the user's is left as it is.
    """
    check_number(keep_last, "keep_last")

    def drop(messages: list[Any], codec: MessageCodec[Any]) -> list[Any]:
        places = [place for place, message in enumerate(messages) if is_tool_result(codec, message)]
        for place in places[: len(places) - keep_last] if keep_last else places:
            messages[place] = codec.blank(messages[place], replacement)
        return messages

    drop.__name__ = "drop_tool_bodies"
    return drop


def summarise(fn: Callable[[list[Any]], Any], keep_turns: int = 2) -> Reducer[Any]:
    """A reducer that puts one message in the place of all turns but the newest `keep_turns`.

    ``fn(older_messages)``, which may be async, returns that message. It is not called if there are no older turns. What
    stands before the first turn, such as a system message, stays before the summary. A summary belongs to no turn:
    it is the first to go if the window is still too small.
    """
    check_number(keep_turns, "keep_turns")

    async def shorten(messages: list[Any], codec: MessageCodec[Any]) -> list[Any]:
        starts = [place for place, message in enumerate(messages) if codec.encode(message).starts_turn]
        if len(starts) <= keep_turns:
            return messages
        kept_from = starts[len(starts) - keep_turns] if keep_turns else len(messages)
        summary = fn(messages[starts[0] : kept_from])
        if inspect.isawaitable(summary):
            summary = await summary
        codec.encode(summary)  # Says at once if it is no message.
        return [*messages[: starts[0]], summary, *messages[kept_from:]]

    shorten.__name__ = "summarise"
    return shorten
