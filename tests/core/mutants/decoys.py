"""What tries the trial itself: one mutant that breaks nothing, and two whose end is an error of their own."""

from __future__ import annotations

from typing import Any

from chatkeep import heads
from chatkeep.memory import MemoryBackend
from chatkeep.records import Key, Outcome, Write

from . import Mutant


def no_text(serializer: Any, service_session_id: Any) -> str:
    """Fails as a slip in a mutant would."""
    return str(serializer.no_such_method(service_session_id))


class NoStoreAtAll(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        return Outcome("a life", seqs=[1] * len(write.append), versions=["1"] * len(write.state))


DECOYS = [
    Mutant("BreaksNothing", (24,), "nothing is broken", "chatkeep.memory.heads", heads),
    Mutant("no_text", (24,), "it calls what is not there", "chatkeep.metadata.service_entry", no_text),
    Mutant("NoStoreAtAll", (24,), "it stores nothing", "chatkeep.memory.MemoryBackend", NoStoreAtAll),
]
ENDS = {"BreaksNothing": "survived", "no_text": "in error", "NoStoreAtAll": "in error"}
"""How they must end."""
