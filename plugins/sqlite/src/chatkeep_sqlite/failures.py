"""What SQLite's errors mean for whoever uses the store: what is wrong with which file, and the mend."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path

from chatkeep.errors import StoreError, StoreUnavailableError

from .files import LOG

DRIVER_ERRORS = (sqlite3.Error, UnicodeDecodeError, json.JSONDecodeError)
"""What comes out of a database. The last two mean that it is damaged: only Unicode and JSON was put in."""

_FOREIGN_TABLE = re.compile(
    "no such (table|column)|has no column named|values were supplied|views may not be|view chatkeep_"
)
"""What SQLite says of a table that is not as it was made."""
_UNDECODABLE = "Could not decode to UTF-8"
"""How Python begins to say that a text in the database is none."""


class DamageError(sqlite3.DatabaseError):
    """The database is damaged in a way that SQLite itself does not notice."""


def undecodable(error: Exception) -> bool:
    """Whether a text in the database is not Unicode."""
    return str(error).startswith(_UNDECODABLE)


def translated(error: Exception, path: str) -> StoreError:
    """The error as chatkeep's own."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    said = f"{error}, {name}"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailableError(
            f"{path!r} stays locked by another program; nothing was written: end that program, "
            "or wait longer with timeout="
        )
    if name in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"):
        return StoreUnavailableError(
            f"there is no room for {path!r} ({said}); nothing was written: free space on its disk"
        )
    if name == "SQLITE_IOERR_WRITE":
        return StoreUnavailableError(
            f"{path!r} cannot be written ({said}); nothing was written: see whether the disk is sound, or a quota or a "
            "limit on the size of files used up"
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return StoreUnavailableError(_read_only(path, said, opening=name == "SQLITE_READONLY_DIRECTORY"))
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreUnavailableError(
            f"{path!r} cannot be opened ({said}); nothing was written: see that this program may read and write it, "
            "and make files in its folder"
        )
    if name == "SQLITE_NOTADB":
        return StoreUnavailableError(f"{path!r} is no SQLite database: choose another file")
    if name == "SQLITE_ERROR" and _FOREIGN_TABLE.search(str(error)):
        return StoreError(
            f"{path!r}: {error}. Another program has made or changed a table or view there whose name begins "
            "with chatkeep_: choose another file"
        )
    damages = isinstance(error, DamageError) or not isinstance(error, sqlite3.Error)
    if damages or name.startswith(("SQLITE_CORRUPT", "SQLITE_CONSTRAINT")):
        return _damaged(path, str(error))
    if undecodable(error):
        return _damaged(path, "a text in it is not Unicode")  # which SQLite's message would quote in full
    return StoreError(f"{path!r}: {error} ({name})")


def _damaged(path: str, reason: str) -> StoreError:
    return StoreError(
        f"{path!r} is damaged ({reason}): restore a backup of it, or save what can be read with "
        f"`sqlite3 {path!r} .recover | sqlite3 recovered.db`"
    )


def _read_only(path: str, said: str, *, opening: bool) -> str:
    folder = str(Path(path).absolute().parent)
    if opening:
        return (
            f"{path!r} cannot be opened, not even to be read, since SQLite makes files beside it, and the folder "
            f"{folder!r} is read-only for this program: give it permission to write there, or copy the file to another "
            "folder"
        )
    found = [name for name in (path, path + LOG, f"{path}-shm", folder) if Path(name).exists() and not _writable(name)]
    return (
        f"{(found or [path])[0]!r} is read-only for this program ({said}); what is stored can be read, and nothing was "
        "written: give it permission to write, and open a new store"
    )


def _writable(path: str) -> bool:
    return os.access(path, os.W_OK)
