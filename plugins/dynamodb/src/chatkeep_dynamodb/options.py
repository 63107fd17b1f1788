"""The options of ``dynamodb://`` URLs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from chatkeep.options import StoreOptions

WHILE_A_TABLE_IS_MADE = 180.0
"""Seconds that opening may take where it may have to make the table, unless the URL says how long."""


class DynamoOptions(StoreOptions):
    """Options of ``dynamodb://`` URLs. Credentials come from where boto3 finds them, never from the URL."""

    endpoint_url: str | None = Field(
        None, description="Another endpoint than the region's own: an emulator's, or an interface endpoint's."
    )
    profile: str | None = Field(None, min_length=1, description="The profile of the AWS configuration to use.")
    connections: Annotated[int, Field(ge=1, le=128)] = Field(
        16, description="How many calls may be under way at once: threads, and connections, of the store's own."
    )
    create: bool = Field(False, description="Make the table if there is none, and wait until it can be used.")
    recovery: bool = Field(False, description="With create: point-in-time recovery for a table that is made.")
    kms_key: str | None = Field(
        None,
        min_length=1,
        description="With create: encrypt a table that is made with this AWS KMS key; `alias/aws/dynamodb` is the "
        "account's own. Not set: with a key that AWS owns.",
    )

    @model_validator(mode="before")
    @classmethod
    def _wait_for_a_table(cls, values: Any) -> Any:
        if isinstance(values, dict) and str(values.get("create", "")).lower() in ("true", "1", "yes", "on"):
            return {"connect_timeout": WHILE_A_TABLE_IS_MADE, **values}
        return values
