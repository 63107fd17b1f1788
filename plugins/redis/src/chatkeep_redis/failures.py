"""What Redis's and the driver's errors mean for whoever uses the store, and which of them pass."""

from __future__ import annotations

import asyncio
import re
import ssl

from redis import exceptions as redis

from chatkeep.errors import OutcomeUnknownError, StoreError, StoreUnavailableError

DRIVER_ERRORS = (redis.RedisError, redis.RedisClusterException, OSError)
"""What comes out of the driver."""

LOST = (redis.ConnectionError, redis.TimeoutError, OSError, TimeoutError, asyncio.IncompleteReadError)
"""The connection is gone, or was never there."""

_PERMANENT = (redis.AuthenticationError, redis.AuthorizationError)
"""Errors of a connection that the next one meets too."""

_REPLICA = ("READONLY", "You can't write against a read only")
_PASSING = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "BUSY ", "Redis is loading")


def is_lost(error: BaseException) -> bool:
    """Whether there may be another connection soon on which the same works."""
    return isinstance(error, LOST) and not isinstance(error, _PERMANENT) and not _is_certificate(error)


def _is_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_of_a_replica(error: Exception) -> bool:
    """Whether the server is a replica: after a failover, of a master that is elsewhere now."""
    return isinstance(error, redis.ReadOnlyError) or str(error).startswith(_REPLICA)


def passes(error: Exception) -> bool:
    """Whether a server that refuses with this error may take the same soon."""
    passing = (redis.BusyLoadingError, redis.ClusterDownError, redis.MasterDownError, redis.TryAgainError)
    return isinstance(error, passing) or str(error).startswith(_PASSING)


def is_redirection(error: Exception) -> bool:
    """Whether another node of a cluster has the key."""
    return isinstance(error, redis.AskError)  # which MOVED is, too


def unknown(reason: str) -> OutcomeUnknownError:
    """What is said of a write that may or may not be stored."""
    reason, _, _ = reason.partition("; nothing was written")  # which was said of the last attempt alone
    return OutcomeUnknownError(
        f"{reason}: the write may or may not be stored; send it again with the same batch_id or message ids, and it is "
        "stored once"
    )


def translated(error: BaseException, place: str, prefix: str) -> StoreError:
    """The error as chatkeep's own. `place` is the redacted URL."""
    said = _said(error)
    if isinstance(error, redis.AuthenticationError | redis.AuthorizationError):
        return StoreUnavailableError(f"{place} refused the user name or the password ({said}): see to them in the URL")
    if is_redirection(error) if isinstance(error, Exception) else False:
        return StoreError(f"{place} is a node of a cluster ({said}): use a redis+cluster:// URL")
    if isinstance(error, redis.RedisClusterException) and not isinstance(error, redis.ClusterDownError):
        return StoreUnavailableError(f"{place} is no cluster that works ({said}): for one server use redis://")
    if isinstance(error, redis.OutOfMemoryError) or said.startswith("OOM"):
        return StoreUnavailableError(
            f"{place} is out of memory ({said}); nothing was written: raise its maxmemory, or delete what is not needed"
        )
    if isinstance(error, redis.NoPermissionError) or said.startswith("NOPERM") or "NOPERM" in said:
        return StoreError(
            f"{place} does not permit this to its user ({said}): permit it the keys {prefix}* and the commands that "
            f"the documentation lists, or choose another ?prefix="
        )
    if "WRONGTYPE" in said:
        return StoreError(
            f"{place} has keys of another program under the prefix {prefix!r} ({said}): choose another ?prefix="
        )
    if isinstance(error, Exception) and is_of_a_replica(error):
        return StoreUnavailableError(
            f"{place} is a replica, which takes no writes ({said}); nothing was written: name its master, or use "
            "redis+sentinel://"
        )
    if isinstance(error, redis.BusyLoadingError) or said.startswith("LOADING"):
        return StoreUnavailableError(f"{place} is loading its data ({said}); nothing was written: wait for it")
    if isinstance(error, LOST) or (isinstance(error, Exception) and passes(error)):
        return StoreUnavailableError(f"{place} cannot be reached ({said}); nothing was written: see that it is running")
    return StoreError(f"{place}: {said}")


def _said(error: BaseException) -> str:
    """What the error says, or the one behind it, in one line."""
    text = " ".join(str(error).split())
    if not text and (error.__cause__ or error.__context__):
        text = " ".join(str(error.__cause__ or error.__context__).split())
    return re.sub(r"\.$", "", text) or type(error).__name__
