"""Which files this process has open, and which of them it has inherited over a fork.

SQLite locks a file with POSIX locks, which a forked child does not inherit, and keeps a table of them in memory, which
it does: SQLite in the child believes in locks that nobody holds, and whoever closes the file elsewhere removes the
write-ahead log under it, with all that was acknowledged. So a child may not open what its parent had open.
"""

from __future__ import annotations

import os
from pathlib import Path

from chatkeep.errors import StoreUnavailableError

_open: set[OpenFile] = set()


class OpenFile:
    """A file that one connection has open: noted from before it is opened until after it is closed."""

    def __init__(self, path: str) -> None:
        """A `StoreUnavailableError` if this process has inherited the file open."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise StoreUnavailableError(f"cannot open {path!r}: {error.strerror}") from error
        self._identity = (status.st_dev, status.st_ino)
        self._process = os.getpid()
        for other in tuple(_open):
            if other._identity == self._identity and other._process != self._process:
                raise StoreUnavailableError(
                    f"{path!r} was open in the process of which this one is a fork, and SQLite would lose what is "
                    "written now: fork before the first store on this file is opened or after the last one is closed, "
                    'or start processes with "spawn" instead'
                )
        _open.add(self)

    def closed(self) -> None:
        """The connection is closed, or was never opened."""
        _open.discard(self)
