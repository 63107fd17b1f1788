"""The options of ``mongodb://`` URLs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from chatkeep.options import StoreOptions


class MongoOptions(StoreOptions):
    """Options of ``mongodb://`` URLs. All others in the URL are the driver's, and reach it untouched."""

    driver_options: ClassVar[frozenset[str] | None] = None  # which there are, the driver says: see `connecting`

    driver: Literal["pymongo", "motor"] = Field(
        "pymongo", description="PyMongo's async API, or Motor, which needs chatkeep-mongodb[motor]."
    )
    collection: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^$\x00]+$")] = Field(
        "chatkeep", description="The collection that holds everything."
    )
    indexes: Literal["create", "manual"] = Field(
        "create",
        description="Make the indexes that are missing; manual: somebody else does, and ping says which are missing.",
    )
