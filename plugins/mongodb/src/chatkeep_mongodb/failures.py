"""What the driver's errors mean: whether a change may have been made, and what is to be told to whoever asked."""

from __future__ import annotations

from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)

from chatkeep.errors import StoreClosedError, StoreError, StoreTimeoutError, StoreUnavailableError

DRIVER_ERRORS: tuple[type[Exception], ...] = (PyMongoError,)

NOT_SENT = (ServerSelectionTimeoutError, WaitQueueTimeoutError)
"""With these, nothing was sent. Where the driver had sent something before, it raises what came of that."""

_REFUSED = {13, 18, 33, 8000}
"""Not allowed, not authenticated."""
_TOO_LARGE = {10334, 17419, 17420}
"""A document would be larger than 16 MB, as stored or after an update."""


def may_be_done(error: PyMongoError) -> bool:
    """Whether a change that ended so may have been made, be made later, or be taken back by a failover."""
    if isinstance(error, NOT_SENT):
        return False
    if isinstance(error, (ConnectionFailure, WriteConcernError, ExecutionTimeout)):
        return True
    return error.has_error_label("RetryableWriteError")


def translated(error: Exception, place: str) -> StoreError | StoreClosedError:
    """The error as chatkeep's own. `place` names the database without its password."""
    said = " ".join(str(error).split())
    if isinstance(error, InvalidOperation) and "after close" in said:
        return StoreClosedError(f"{place}: the client is closed: {said}")
    if isinstance(error, OperationFailure) and error.code in _REFUSED:
        return StoreUnavailableError(f"{place}: the server refuses this user: {said}")
    if isinstance(error, DocumentTooLarge) or (isinstance(error, OperationFailure) and error.code in _TOO_LARGE):
        return StoreError(
            f"{place}: a session's head would be larger than the 16 MB that a document may have, and nothing was "
            f"written: it has too many logs, divide them among sessions ({said})"
        )
    if isinstance(error, ExecutionTimeout):
        return StoreTimeoutError(f"{place} did not answer in time: {said}")
    if isinstance(error, (AutoReconnect, ConnectionFailure, ConfigurationError)):
        return StoreUnavailableError(f"{place} cannot be reached: {said}")
    return StoreError(f"{place}: {said} ({type(error).__name__})")
