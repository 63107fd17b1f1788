"""Conversations in any store that can change one document under a condition: MongoDB, DynamoDB and their like.

A plugin writes a `Driver`, a handful of operations on documents, and opens a `DocumentBackend` over it. No transaction,
no join and no snapshot over several documents is asked for.

Each session has one *head*: its life, where its logs stand, its expiry, and its newest messages. Everything else lies
in *parts*, which have names that were never used before and are never changed: older messages in leaves, lists of
leaves, state, and what is too large for either. A part counts only if it can be reached from the head. Why nothing is
torn or lost:

1. Every commit changes one document, the head, if its version is still the one that the commit was made from. The new
   version is a random number, so no version ever comes back, whatever was deleted and begun anew in between.
2. So the commits of a session form one chain, each made from all that its predecessor left: a writer with a stale tail,
   a former life or an older fence changes nothing, and makes its write anew from the head that it finds.
3. A commit puts its parts before it changes the head. Who sees the head can see all of it, and who dies in between
   leaves parts that nobody can reach.
4. A reader's view is one head and parts that never change: never half of a batch, never a hole that fills in later. A
   part that is missing was given up by a later head, which the reader then takes instead.
5. What a head gives up it lists, and only what some head has listed is deleted: it is out of reach from then on. Parts
   that no head reaches are deleted only when they are older than any write may take (`GRACE`).
6. The head remembers its latest versions. A writer whose answer was lost looks for its own there: stored once, and
   acknowledged only where it is found. Where it cannot tell any more, it says so.
7. Expiry is in the head, too, so that it is renewed by the commit itself. Parts are kept for at least one `ttl` longer:
   they are told before the head is, so that a writer who dies in between shortens no life.
"""

from __future__ import annotations

from .backend import DocumentBackend
from .driver import GRACE, Change, Document, Driver, Limits, Part, PartName, UncertainError, View

__all__ = [
    "GRACE",
    "Change",
    "Document",
    "DocumentBackend",
    "Driver",
    "Limits",
    "Part",
    "PartName",
    "UncertainError",
    "View",
]
