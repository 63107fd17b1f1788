"""The scripts that Redis runs for us, each one command and atomic."""

from __future__ import annotations

import hashlib
import importlib.resources


class Script:
    """A script of the folder ``scripts``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = importlib.resources.files(__package__).joinpath("scripts", f"{name}.lua").read_bytes()
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        """What Redis calls it once it has seen it."""


COMMIT = Script("commit")
READ = Script("read")
STATE = Script("state")
REMOVE = Script("remove")
CATALOGUE = Script("catalogue")
