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
_NO_NODE = re.compile("Redis Cluster cannot be connected|Cluster mode is not enabled")
_CUT = re.compile("lost|closed|reset", re.IGNORECASE)
"""How a server that wants TLS takes leave of who speaks none, and others do."""
_EXHAUSTED = ("Too many connections", "No connection available")
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


def is_of_the_pool(error: Exception) -> bool:
    """Whether the client has no connection left; the server was not asked."""
    return isinstance(error, redis.MaxConnectionsError) or str(error).startswith(_EXHAUSTED)


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


_UNAVAILABLE, _REFUSED = StoreUnavailableError, StoreError
_MEANINGS: tuple[tuple[str, type[StoreError], str], ...] = (
    # What asking sentinels has met, which stands in one error together with each sentinel's own.
    (
        "No master found.*(unknown command|unknown subcommand)",
        _UNAVAILABLE,
        "asks servers that are no sentinels: name those (port 26379), or for one server use redis://",
    ),
    (
        r"No master found.* - \w*Auth\w*Error\(",
        _UNAVAILABLE,
        "is refused by its sentinels: see to sentinel_username and sentinel_password",
    ),
    (
        "No master found.* : ",
        _UNAVAILABLE,
        (
            "cannot be reached: not all of its sentinels answer, and of those that do none names that master: see "
            "that they are running"
        ),
    ),
    (
        "No master found",
        _UNAVAILABLE,
        "has sentinels that name no master of that name: see to the name in the URL, and that the master is running",
    ),
    ("unknown command .?SENTINEL", _UNAVAILABLE, "is no sentinel ({said}): for one server use redis://"),
    (
        "NOAUTH|Authentication required|HELLO must be called with the client already authenticated",
        _UNAVAILABLE,
        "wants a password, and none is given ({said}): write it into the URL, in front of the host as :password@",
    ),
    (
        "without any password configured",
        _UNAVAILABLE,
        "has no password, and one is given ({said}): leave it out of the URL",
    ),
    (
        "AuthenticationError|AuthorizationError|WRONGPASS|invalid username-password",
        _UNAVAILABLE,
        "refused the user name or the password ({said}): see to them in the URL",
    ),
    ("MovedError|AskError", _REFUSED, "is a node of a cluster ({said}): use a redis+cluster:// URL"),
    (
        "cluster support disabled|Cluster mode is not enabled|unknown command .?CLUSTER",
        _UNAVAILABLE,
        "is no cluster ({said}): for one server use redis://",
    ),
    (
        "unknown command .?EVAL",
        _REFUSED,
        "runs no scripts ({said}): if it is a sentinel, use redis+sentinel://host:port/name of the master",
    ),
    (
        "OutOfMemoryError|: OOM",
        _UNAVAILABLE,
        "is out of memory ({said}); nothing was written: raise its maxmemory, or delete what is not needed",
    ),
    (
        "NoPermissionError|NOPERM",
        _REFUSED,
        (
            "does not permit this to its user ({said}): permit it the keys {prefix}* and the commands that the "
            "documentation lists, or choose another ?prefix="
        ),
    ),
    (
        "WRONGTYPE",
        _REFUSED,
        "has keys of another program under the prefix {prefix!r} ({said}): choose another ?prefix=",
    ),
    (
        r"Error 2 connecting to \S+:\d+\. No such file",
        _UNAVAILABLE,
        "cannot be reached: a file that its ssl_ options name is not there ({said}): see to their paths",
    ),
    (
        "DB index is out of range|invalid DB index",
        _REFUSED,
        "has no such database ({said}): choose a lower number",
    ),
    (
        "WRONG_VERSION_NUMBER|wrong version number|RECORD_LAYER_FAILURE|record layer failure",
        _UNAVAILABLE,
        "speaks no TLS on this port ({said}): use the port that does, or redis:// (for a cluster no ssl=true)",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        _UNAVAILABLE,
        (
            "has a certificate that is not trusted ({said}): name its authority's file as ?ssl_ca_certs=, and its host "
            "as the certificate does"
        ),
    ),
    (
        "ReadOnlyError|READONLY|You can't write against a read only",
        _UNAVAILABLE,
        "is a replica, which takes no writes ({said}); nothing was written: name its master, or use redis+sentinel://",
    ),
    ("BusyLoadingError|: LOADING", _UNAVAILABLE, "is loading its data ({said}); nothing was written: wait for it"),
)
"""What errors mean: a pattern of ``Type: text``, the first that is found; the kind; what is said behind the place."""


def translated(error: BaseException, place: str, prefix: str) -> StoreError:
    """The error as chatkeep's own. `place` is the redacted URL."""
    if isinstance(error, redis.RedisClusterException) and _NO_NODE.match(str(error)):
        behind = error.__cause__ or error.__context__
        if isinstance(behind, DRIVER_ERRORS):  # why no node could be asked, or none has said what a cluster says
            return translated(behind, place, prefix)
    said = _said(error)
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == redis.__name__]
    text = f"{' '.join(names)}: {said}"
    secure = place.startswith(("rediss", "valkeys")) or "ssl=" in place
    for pattern, kind, words in _MEANINGS:
        if re.search(pattern, text):
            return kind(f"{place} {words.format(said=said, prefix=prefix)}")
    if isinstance(error, redis.RedisClusterException) and not isinstance(error, redis.ClusterDownError):
        return StoreUnavailableError(f"{place} is no cluster that works ({said}): for one server use redis://")
    if isinstance(error, LOST) or (isinstance(error, Exception) and passes(error)):
        tls = ", and that it wants no TLS, which is rediss://" if _CUT.search(said) and not secure else ""
        return StoreUnavailableError(
            f"{place} cannot be reached ({said}); nothing was written: see that it is running{tls}"
        )
    return StoreError(f"{place}: {said if names else f'{type(error).__name__}: {said}'}")


def _said(error: BaseException) -> str:
    """What the error says, or the one behind it, in one line."""
    text = " ".join(str(error).split())
    if not text and (error.__cause__ or error.__context__):
        text = " ".join(str(error.__cause__ or error.__context__).split())
    return re.sub(r"\.$|, with args beginning with:.*", "", text) or type(error).__name__
