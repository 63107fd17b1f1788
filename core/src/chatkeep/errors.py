"""Every error that chatkeep raises: one tree, one root.

::

    ChatkeepError
    ├── ConfigError (ValueError)                  a URL or an option is wrong
    │   ├── InvalidURLError                       not a URL of the form scheme://…
    │   ├── UnknownSchemeError                    no backend for this scheme
    │   ├── BackendNotInstalledError (ImportError)  known, but its distribution is not here
    │   ├── BackendBrokenError (ImportError)      installed, but it does not load
    │   └── DuplicateBackendError                 two plugins claim one scheme
    ├── InvalidIdError (ValueError, TypeError)    a session, scope, log or state key that cannot be one
    ├── ScopeRequiredError (PermissionError)      the store refuses sessions outside a scope
    ├── SerializationError (ValueError)           a value that cannot be stored; names its path
    ├── MessageTooLargeError (ValueError)         over max_message_bytes or max_batch_bytes
    ├── CorruptRecordError (ValueError)           a stored record cannot be read; names session and seq
    ├── WindowError (ValueError)                  the newest turn does not fit the window
    ├── MessageNotFoundError (LookupError)        no message at that seq
    ├── ConflictError (RuntimeError)              somebody else was first; carries what is current
    │   ├── DuplicateIdError                      a message with this id is stored already
    │   ├── LeaseHeldError                        another holder has the lease
    │   └── FencedError                           a newer holder has had the lease since
    ├── StoreClosedError (RuntimeError)           used after close
    ├── StoreLoopError (RuntimeError)             used from a second event loop or a forked process
    └── StoreError                                the database did not do it
        ├── StoreUnavailableError (ConnectionError)  cannot be reached, opened or locked; nothing was written
        │   └── StoreTimeoutError (TimeoutError)  no answer in time; nothing was written
        ├── StoreFormatError                      the stored form is newer than this version of chatkeep
        └── OutcomeUnknownError                   the write may or may not have been stored

Each is also the builtin that a caller would catch. What a driver raised is the ``__cause__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .records import Cursor, Record


class ChatkeepError(Exception):
    """The root of every error raised by chatkeep."""


class ConfigError(ChatkeepError, ValueError):
    """A connection URL or an option is wrong."""


class InvalidURLError(ConfigError):
    """The text is not a URL of the form ``scheme://…``, or its parts do not fit its scheme."""


class UnknownSchemeError(ConfigError):
    """No installed or known backend answers to the URL's scheme."""


class BackendNotInstalledError(ConfigError, ImportError):
    """The scheme is known, but the distribution that serves it is not installed."""


class BackendBrokenError(ConfigError, ImportError):
    """The backend's distribution is installed, but it cannot be loaded; the cause says why."""


class DuplicateBackendError(ConfigError):
    """Two installed plugins claim the same scheme."""


class InvalidIdError(ChatkeepError, ValueError, TypeError):
    """A session id, scope field, log name or state key that cannot be one."""


class ScopeRequiredError(ChatkeepError, PermissionError):
    """The store was opened with ``require_scope=True`` and a session was addressed outside a scope."""


class SerializationError(ChatkeepError, ValueError):
    """A value cannot be stored faithfully. ``path`` names its place, such as ``$.args[2]``."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path

    def below(self, root: str) -> SerializationError:
        """The same error where `root` is the place of the value, such as ``state['k']``."""
        path = root + self.path.removeprefix("$")
        text = str(self)
        return SerializationError(
            path + text.removeprefix(self.path) if text.startswith(self.path) else text, path=path
        )


class MessageTooLargeError(ChatkeepError, ValueError):
    """A message or a batch is larger than the store's limit; nothing was written."""


class CorruptRecordError(ChatkeepError, ValueError):
    """A stored record is damaged or of an unknown format: ``record`` is what is stored, ``seq`` its place."""

    def __init__(self, message: str, *, record: Record | None = None) -> None:
        super().__init__(message)
        self.record = record
        self.seq = record.seq if record else 0


class WindowError(ChatkeepError, ValueError):
    """The newest turn alone is larger than the window."""


class MessageNotFoundError(ChatkeepError, LookupError):
    """There is no message at that seq."""


class ConflictError(ChatkeepError, RuntimeError):
    """A condition of a write does not hold; nothing was written.

    ``tail`` is the log's current tail where the condition was about a log, else None;
    ``version`` is the current version of the state key where it was about state (None: absent).
    """

    def __init__(self, message: str, *, tail: Cursor | None = None, version: str | None = None) -> None:
        super().__init__(message)
        self.tail = tail
        self.version = version


class DuplicateIdError(ConflictError):
    """A message with this id is stored already.

    ``seqs`` says where: with ``on_conflict="strict"`` for every such id of the batch, else for the one that was met
    first. A seq may have been trimmed.
    """

    def __init__(self, message: str, *, seqs: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.seqs = dict(seqs or {})


class LeaseHeldError(ConflictError):
    """Another holder has the session's lease."""


class FencedError(ConflictError):
    """The session's lease has passed to a newer holder: this one may not write any more."""


class StoreClosedError(ChatkeepError, RuntimeError):
    """The store was closed."""


class StoreLoopError(ChatkeepError, RuntimeError):
    """The store belongs to another event loop, which is still open, or to the process that this one was forked from.

    Or `chatkeep.sync` was called where an event loop is running, which it would block.
    """


class StoreError(ChatkeepError):
    """The database refused or failed."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The database cannot be reached, opened or locked. Nothing was written."""


class StoreTimeoutError(StoreUnavailableError, TimeoutError):
    """No answer within the timeout. Nothing was written."""


class StoreFormatError(StoreError):
    """The data was written in a stored form that this version of chatkeep does not know."""


class OutcomeUnknownError(StoreError):
    """The write was sent and not answered: it may or may not have been stored.

    Send it again with the same ``batch_id`` (or message ids): it will be stored once.
    """
