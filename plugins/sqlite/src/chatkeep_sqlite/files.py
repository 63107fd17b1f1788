"""The files of a database: whether there may be one, who has it open, and whether it still lies where it was opened.

SQLite finds a database and its write-ahead log by name once, and keeps what it has opened. A database that is moved,
deleted or replaced meanwhile parts from its log: SQLite goes on acknowledging into a log that nobody will look for
beside that file, and does not even empty it at the end. So every commit and every reading looks first.

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
import time
from pathlib import Path

from chatkeep.errors import StoreUnavailableError

logger = logging.getLogger("chatkeep.sqlite")

LOG = "-wal"
"""How the name of a database's write-ahead log ends."""

LOOK_AFTER = 0.1
"""Seconds after which `check` looks for the log again: who removes that alone harms nothing before the process dies."""

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
    left = _size(path + LOG)  # looked at before the file, which is there first where somebody else is making both
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


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _refuse_orphan(path: str, left: int) -> None:
    """SQLite would delete the write-ahead log of a database that is not there, or is empty."""
    if left:
        raise StoreUnavailableError(
            f"{path!r} is missing or empty, and {path + LOG!r} holds writes to it, which a new file would destroy: "
            f"put the database back beside it, or delete {path + LOG!r} to begin anew"
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


class OpenFile:
    """A file that one connection has open: noted from before it is opened until after it is closed."""

    def __init__(self, path: str) -> None:
        """A `StoreUnavailableError` if this process has inherited the file open."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise StoreUnavailableError(f"cannot open {path!r}: {error.strerror}") from error
        self._path = path
        self._identity = (status.st_dev, status.st_ino)
        self._process = os.getpid()
        self._log = path + LOG
        self._log_identity: tuple[int, int] | None = None
        self._look_at = math.inf
        self._prepared = False
        self._unsaved = ""
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
        self._prepared = True
        if log:
            self._log_identity = _identity(self._log)
            self._look_at = 0.0

    def check(self, connection: sqlite3.Connection) -> None:
        """A `StoreUnavailableError` if the file or its log is not there any more; what was acknowledged is saved."""
        if _identity(self._path) != self._identity:
            raise self._parted(connection)
        now = time.monotonic()
        if now < self._look_at:
            return
        if _identity(self._log) != self._log_identity:
            saved = self._save(connection)
            raise StoreUnavailableError(
                f"{self._log!r} was moved, deleted or replaced while its database was open; nothing was written. "
                f"Close this store and open a new one on {self._path!r}: {saved}"
            )
        self._look_at = now + LOOK_AFTER

    def _parted(self, connection: sqlite3.Connection) -> StoreUnavailableError:
        path, saved = self._path, self._save(connection)
        try:
            Path(path).stat()
        except FileNotFoundError:
            return StoreUnavailableError(
                f"{path!r} was moved or deleted while it was open; nothing was written. "
                f"Move it back and this store goes on, or open a new one where it is now: {saved}"
            )
        except OSError as error:
            return StoreUnavailableError(
                f"{path!r} cannot be reached any more ({error.strerror}); nothing was written. "
                f"Make it reachable again and this store goes on: {saved}"
            )
        return StoreUnavailableError(
            f"another file has taken the place of {path!r} while that was open; nothing was written. "
            f"Put the former one back and this store goes on ({saved}), or open a new one on what is there now"
        )

    def _save(self, connection: sqlite3.Connection) -> str:
        """See that the file holds everything; in words, whether it does."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        reason = empty_log(connection) if self._prepared else ""
        self._unsaved = reason and f" or still in {self._log!r}, out of which it could not be moved ({reason})"
        return f"all that was stored before is in it{self._unsaved}"

    def leave(self, connection: sqlite3.Connection) -> None:
        """Before the connection is closed: SQLite's last one empties the log, but not into a file that has moved."""
        if _identity(self._path) != self._identity:
            saved = self._save(connection)
            level = logging.WARNING if self._unsaved else logging.INFO
            logger.log(level, "%r was moved or replaced while it was open: %s", self._path, saved)

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
