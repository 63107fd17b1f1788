"""Editing on moto: the quick run, in this process and without a server.

It proves little: moto is no DynamoDB. It refuses items near 400 KB that DynamoDB takes, ends pages early, and no other
process can have what is in it; a condition and what it guards are two steps of it, so that here the calls of all
threads go one after the other. The rest of the contract is left to emulators that are servers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("moto", reason="moto is not installed: pip install -r requirements-dev.txt")

import boto3
from botocore.client import BaseClient
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
    def options(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
        call, one_at_a_time = BaseClient._make_api_call, threading.Lock()  # type: ignore[attr-defined]

        def call_alone(client: BaseClient, operation: str, request: dict[str, Any]) -> Any:
            with one_at_a_time:
                return call(client, operation, request)

        monkeypatch.setattr(BaseClient, "_make_api_call", call_alone)
        with mock_aws():
            client = boto3.client("dynamodb", region_name="eu-west-1")
            client.create_table(**table.definition(TABLE, kms_key=None))
            yield {"client": client}
