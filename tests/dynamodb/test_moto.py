"""Editing on moto: the quick run, in this process and without a server.

It proves little: moto is no DynamoDB. It refuses items near 400 KB that DynamoDB takes, ends pages early, and no other
process can have what is in it. The rest of the contract is left to emulators that are servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("moto", reason="moto is not installed: pip install -r requirements-dev.txt")

import boto3
from moto import mock_aws

from chatkeep.testing.editing import Editing
from chatkeep_dynamodb import table

TABLE = "Conversations"


@pytest.mark.once
class TestMoto(Editing):
    @pytest.fixture
    def url(self) -> str:
        return f"dynamodb:///{TABLE}"

    @pytest.fixture
    def options(self) -> Iterator[dict[str, Any]]:
        with mock_aws():
            client = boto3.client("dynamodb", region_name="eu-west-1")
            client.create_table(**table.definition(TABLE, kms_key=None))
            yield {"client": client}
