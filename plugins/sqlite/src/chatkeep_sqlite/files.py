"""The files of a database: whether there may be one, who has it open, and whether it still lies where it was opened.

SQLite finds a database and its write-ahead log by name once, and keeps what it has opened. A database that is moved,
deleted or replaced meanwhile parts from its log: SQLite goes on acknowledging into a log that nobody will look for
beside that file, and does not even empty it at the end. So commits and readings look first.

It locks a file with POSIX locks, which a forked child does not inherit, and keeps a table of them in memory, which it
does: SQLite in the child believes in locks that nobody holds, and whoever closes the file elsewhere removes the
write-ahead log under it, with all that was acknowledged. So a child may not open what its parent had open.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import stat
import threading
import time
from pathlib import Path

from chatkeep.errors import StoreUnavailableError

logger = logging.getLogger("chatkeep.sqlite")

LOG = "-wal"
"""How the name of a database's write-ahead log ends."""
BESIDE = (LOG, "-shm")
"""How the names of what lies beside an open database end: its write-ahead log, and the log's index."""

LOOK_AFTER, LOOK_FOR_LOG_AFTER = 0.005, 0.1
"""Seconds after which `check` looks again: looking takes a tenth of the time of a write, and what was acknowledged in
between is saved like everything before. Nobody removes the log by itself."""

_open: set[OpenFile] = set()


def resolve(path: str) -> str:
    """The absolute path without symbolic links: the same file wherever the process, or a link, goes afterwards."""
    try:
        return os.path.realpath(path)
    except OSError as error:
        raise StoreUnavailableError(
            f"cannot open {path!r}: this process's current folder is not there any more ({error.strerror}); "
            "give an absolute path"
        ) from error


def create_file(path: str, *, create: bool = True) -> None:
    """See that there is a file: the one that is there, or with `create` a new one that its owner alone can read.

    SQLite gives its journals the same permissions.
    """
    # Looked at before the file, which is there and not empty first where somebody else is making both.
    left = [path + end for end in BESIDE if _identity(path + end) is not None]
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        if not create:
            raise StoreUnavailableError(f"there is no file {path!r}: check the path") from None
        _refuse_orphan(path, left)
        _make_file(path)
        return
    except OSError as error:
        raise StoreUnavailableError(f"cannot open {path!r}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise StoreUnavailableError(f"{path!r} is a folder: name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise StoreUnavailableError(f"{path!r} is no regular file: name one, or a path where there is none yet")
    if status.st_size == 0:
        _refuse_orphan(path, left)


def _refuse_orphan(path: str, left: list[str]) -> None:
    """SQLite would destroy the write-ahead log of a database that is not there, or write into one still in use."""
    if left:
        names = " and ".join(map(repr, left))
        raise StoreUnavailableError(
            f"{path!r} is missing or empty, and beside it lies what belongs to the database that was there: {names}. "
            "Put that back, or, if nothing has it open any more and nothing in it is needed, delete what it has left"
        )


def _make_file(path: str) -> None:
    file = resolve(path)  # since a link whose target is not there yet would look like a file that somebody has made
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return  # somebody else has made it at the same instant
    except FileNotFoundError as error:
        folder = Path(path).absolute().parent
        reason = f"no file can be made in the folder {str(folder)!r}; choose another one"
        if not folder.is_dir():
            mend = "~ is not expanded: write the folder out" if "~" in Path(path).parts else "make it"
            reason = f"the folder {str(folder)!r} does not exist; {mend}"
        raise StoreUnavailableError(f"cannot open {path!r}: {reason}") from error
    except OSError as error:
        raise StoreUnavailableError(f"cannot make {path!r}: {error.strerror}") from error


def empty_log(connection: sqlite3.Connection) -> str:
    """Put what the write-ahead log holds into the file and empty the log, as far as that goes without waiting.

    Returns why the file does not hold everything yet, and an empty text if it does.
    """
    (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        busy, frames, saved = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")
    return "somebody else is using it" if busy and not 0 <= frames == saved else ""


class Parting:
    """Why a store's database and its file have parted, for all its connections; None while they have not."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reason: str | None = None


class OpenFile:
    """A file that one connection has open: noted from before it is opened until after it is closed."""

    def __init__(self, path: str, parting: Parting) -> None:
        """A `StoreUnavailableError` if this process has inherited the file open."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise StoreUnavailableError(f"cannot open {path!r}: {error.strerror}") from error
        self._path = path
        self._parting = parting
        self._identity = (status.st_dev, status.st_ino)
        self._process = os.getpid()
        self._beside: dict[str, tuple[int, int] | None] = {}
        self._look_at, self._look_for_log_at = 0.0, math.inf
        self._saved = True
        for other in tuple(_open):
            if other._identity == self._identity and other._process != self._process:
                raise StoreUnavailableError(
                    f"{path!r} was open in the process of which this one is a fork, and SQLite would lose what is "
                    "written now: fork before the first store on this file is opened or after the last one is closed, "
                    'or start processes with "spawn" instead'
                )
        _open.add(self)

    def prepared(self, *, log: bool) -> None:
        """Everything of the database is open: from now on `check` with `log` looks for the write-ahead log too."""
        self._beside = {self._path + end: _identity(self._path + end) for end in BESIDE}
        if log:
            self._look_for_log_at = 0.0

    def check(self, connection: sqlite3.Connection) -> None:
        """A `StoreUnavailableError` if the file or its log is not there any more; what was acknowledged is saved."""
        now = time.monotonic()
        if self._parting.reason is None:
            if now < self._look_at:
                return
            if _identity(self._path) == self._identity and (now < self._look_for_log_at or self._log_is_there()):
                self._look_at = now + LOOK_AFTER
                if now >= self._look_for_log_at:
                    self._look_for_log_at = now + LOOK_FOR_LOG_AFTER
                return
        self._refuse_where_parted(connection)

    def _log_is_there(self) -> bool:
        log = self._path + LOG
        return _identity(log) == self._beside.get(log)

    def _refuse_where_parted(self, connection: sqlite3.Connection) -> None:
        with self._parting.lock:
            all_there = _identity(self._path) == self._identity and all(
                _identity(name) == identity for name, identity in self._beside.items()
            )
            if all_there:  # it may have been moved with all that lies beside it, and back
                self._parting.reason = None
                return
            if self._parting.reason is None:
                self._parting.reason = self._part(connection)
            raise StoreUnavailableError(self._parting.reason)

    def _part(self, connection: sqlite3.Connection) -> str:
        """Save once what was acknowledged, leave nothing for others to stumble over, and say what has happened.

        From now on the connection is not used: whoever opens a file at this path must not share a log with it.
        """
        (what, mend), saved = self._found(), self._save(connection)
        return f"{what}; nothing was written. {mend}. {saved}"

    def _found(self) -> tuple[str, str]:
        """What has happened, and the mend."""
        path = self._path
        anew = "Close this store and open a new one on"
        try:
            status = Path(path).stat()
        except FileNotFoundError:
            return f"{path!r} was moved or deleted while it was open", f"{anew} it where it is now"
        except OSError as error:
            return (
                f"{path!r} cannot be reached any more ({error.strerror})",
                "Make it reachable again, with all that lies beside it, and this store goes on",
            )
        if (status.st_dev, status.st_ino) != self._identity:
            return f"another file has taken the place of {path!r} while that was open", f"{anew} what is there now"
        return f"{path + LOG!r} was moved, deleted or replaced while its database was open", f"{anew} {path!r}"

    def _save(self, connection: sqlite3.Connection) -> str:
        """See that the file holds everything, and take away what lies beside its old place; in words, whether it does.

        Whether another program has opened the file at its new place meanwhile, nobody can see from here.
        """
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        reason = empty_log(connection) if self._beside else ""
        self._saved = not reason
        if reason:
            return (
                f"What was stored before is in it or still in {self._path + LOG!r}, out of which it could not be moved "
                f"({reason}): put the database back beside that before anything is opened there"
            )
        if _identity(self._path) != self._identity:
            for name, identity in self._beside.items():
                if identity is not None and _identity(name) == identity:
                    Path(name).unlink(missing_ok=True)
        return "All that was stored before is in it, unless another program has opened it elsewhere meanwhile"

    def leave(self, connection: sqlite3.Connection) -> None:
        """Before the connection is closed: SQLite's last one empties the log, but not into a file that has moved."""
        with self._parting.lock:
            if self._parting.reason is None and _identity(self._path) != self._identity:
                self._parting.reason = self._part(connection)
                logger.log(logging.INFO if self._saved else logging.WARNING, "%s", self._parting.reason)

    def closed(self) -> None:
        """The connection is closed, or was never opened."""
        _open.discard(self)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is there, if there is one that can be looked at."""
    try:
        status = os.stat(path)  # noqa: PTH116 - before each commit and each reading, and Path takes twice as long
    except OSError:
        return None
    return status.st_dev, status.st_ino
