"""The indexes of the one collection: what each is for, and making those that are missing."""

from __future__ import annotations

from typing import Any

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import OperationFailure

from chatkeep.errors import StoreError

NOT_ALLOWED = {13, 8000}
"""The codes of a server that refuses somebody something; the second is Atlas's."""

INDEXES: dict[str, IndexModel] = {
    name: IndexModel(list(keys), name=name, **options)
    for name, keys, options in (
        # A scope's sessions, last written first.
        (
            "chatkeep_listing",
            (("scope", ASCENDING), ("updated", DESCENDING), ("session", ASCENDING)),
            {"partialFilterExpression": {"session": {"$gt": ""}}},
        ),
        # A session by its service session id.
        (
            "chatkeep_service",
            (("scope", ASCENDING), ("service", ASCENDING)),
            {"partialFilterExpression": {"service": {"$gt": ""}}},
        ),
        # Everything in a scope, also the scope's own state: for erasing.
        (
            "chatkeep_scope",
            (("scope", ASCENDING), ("session", ASCENDING)),
            {"partialFilterExpression": {"scope": {"$gt": ""}}},
        ),
        # Older messages by their ids.
        ("chatkeep_ids", (("ids", ASCENDING),), {"partialFilterExpression": {"ids": {"$exists": True}}}),
        # What a sweep looks at: sessions whose time is over, and parts that nobody has confirmed yet.
        ("chatkeep_due", (("due", ASCENDING),), {"partialFilterExpression": {"due": {"$gt": 0}}}),
        ("chatkeep_pending", (("pending", ASCENDING),), {"partialFilterExpression": {"pending": {"$gt": 0}}}),
        # What the server deletes by itself.
        ("chatkeep_reap", (("reap", ASCENDING),), {"expireAfterSeconds": 0}),
    )
}


async def missing(collection: Any) -> list[str]:
    """The names of the indexes that are not there."""
    there = await collection.index_information()
    return [name for name in INDEXES if name not in there]


async def create(collection: Any) -> None:
    """Make the indexes that are missing. Any number of processes may do so at once."""
    wanted = await missing(collection)
    if not wanted:
        return
    try:
        await collection.create_indexes([INDEXES[name] for name in wanted])
    except OperationFailure as error:
        if error.code not in NOT_ALLOWED:
            raise
        raise StoreError(
            f"the collection {collection.full_name} lacks the indexes {', '.join(wanted)}, and this user may not make "
            "them: let it (the role readWrite does), or let somebody who may open a store once, and give "
            "?indexes=manual here"
        ) from error
