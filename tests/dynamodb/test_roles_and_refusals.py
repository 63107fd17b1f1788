"""What no emulator does: roles and keys, by moto within this process; errors in the service's own form, by stubs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("moto", reason="moto is not installed: pip install -r requirements-dev.txt")

import boto3
from botocore.stub import Stubber
from moto import mock_aws

from chatkeep import ChatMessage, Store, StoreError, StoreUnavailableError, open_store
from chatkeep.errors import OutcomeUnknownError
from chatkeep_dynamodb.driver import DynamoDriver
from chatkeep_dynamodb.failures import BUSY, REFUSED

pytestmark = pytest.mark.once
ROLE = "arn:aws:iam::123456789012:role/agents"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Moto in the place of AWS, and no configuration but one that a test writes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with mock_aws(), monkeypatch.context() as within:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            within.delenv(name, raising=False)  # which moto makes up
        yield tmp_path


def credentials_of(store: Store[Any]) -> Any:
    driver = store.backend.driver  # type: ignore[attr-defined]
    assert isinstance(driver, DynamoDriver)
    return driver.calls.client._request_signer._credentials


async def test_a_profile_that_assumes_a_role_is_used_and_its_region_too(aws: Path) -> None:
    (aws / "credentials").write_text("[people]\naws_access_key_id = people\naws_secret_access_key = made-up\n")
    (aws / "config").write_text(f"[profile agents]\nrole_arn = {ROLE}\nsource_profile = people\nregion = eu-north-1\n")
    async with open_store("dynamodb:///Conversations?profile=agents&create=true") as store:
        await store.session("s").append([ChatMessage.user("a")])
        assert len(await store.session("s").messages()) == 1
        used = credentials_of(store)
        assert used.method == "assume-role"
        assert used.access_key != "people"
        assert used.token
    there = boto3.Session(profile_name="people").client("dynamodb", region_name="eu-north-1")
    assert there.list_tables()["TableNames"] == ["Conversations"]


async def test_a_program_that_gives_credentials_is_asked_and_one_that_fails_is_one_clear_line(aws: Path) -> None:
    said = '{\\"Version\\": 1, \\"AccessKeyId\\": \\"from-a-program\\", \\"SecretAccessKey\\": \\"made-up\\"}'
    program = aws / "give"
    program.write_text(f'#!/bin/sh\necho "{said}"\n')
    program.chmod(0o700)
    (aws / "config").write_text(
        f"[profile good]\ncredential_process = {program}\n[profile bad]\ncredential_process = {aws}/nothing\n"
    )
    async with open_store("dynamodb://eu-west-1/Conversations?profile=good&create=true") as store:
        assert credentials_of(store).access_key == "from-a-program"
    with pytest.raises(StoreError) as failed:
        async with open_store("dynamodb://eu-west-1/Conversations?profile=bad"):
            pass
    assert "\n" not in str(failed.value)
    assert "nothing" in str(failed.value)


async def test_a_table_that_is_made_is_encrypted_with_the_key_that_is_named(
    aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "people")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    async with open_store("dynamodb://eu-west-1/Conversations?create=true&kms_key=alias/aws/dynamodb") as store:
        await store.ping()
    described = boto3.client("dynamodb", region_name="eu-west-1").describe_table(TableName="Conversations")["Table"]
    assert described["SSEDescription"]["SSEType"] == "KMS"
    assert described["SSEDescription"]["Status"] == "ENABLED"


async def test_no_credentials_anywhere_are_told_at_once(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"^dynamodb://eu-west-1/Conversations: boto3 finds no credentials"):
        async with open_store("dynamodb://eu-west-1/Conversations"):
            pass
    assert time.monotonic() - began < 20, "somebody was asked who is not there"


# Errors in the service's own form


@pytest_asyncio.fixture
async def stubbed() -> AsyncIterator[tuple[Store[ChatMessage], Stubber]]:
    client = boto3.client("dynamodb", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(client) as stubber:
        stubber.add_response("get_item", {})
        async with open_store("dynamodb:///Conversations", client=client, timeout=5.0) as store:
            await store.open()
            yield store, stubber


@pytest.mark.parametrize("code", sorted(BUSY))
async def test_where_nothing_was_done_it_is_asked_again(stubbed: tuple[Store[ChatMessage], Stubber], code: str) -> None:
    store, stubber = stubbed
    for operation in ("get_item", "update_item", "put_item"):  # to look, the catalogue, the head
        stubber.add_client_error(operation, code, "not now", http_status_code=400)
        stubber.add_response(operation, {})
    appended = await store.session("s").append([ChatMessage.user("a")])
    assert appended.added == 1
    stubber.assert_no_pending_responses()


@pytest.mark.parametrize("code", sorted(REFUSED))
async def test_where_credentials_are_refused_it_is_told_and_not_asked_again(
    stubbed: tuple[Store[ChatMessage], Stubber], code: str
) -> None:
    store, stubber = stubbed
    stubber.add_client_error("get_item", code, "you may not", http_status_code=400)
    with pytest.raises(StoreUnavailableError, match="you may not"):
        await store.session("s").append([ChatMessage.user("a")])
    stubber.assert_no_pending_responses()


@pytest.mark.parametrize("code", ["InternalServerError", "InternalFailure", "ServiceUnavailable"])
async def test_where_it_is_not_known_what_was_done_it_is_looked_for(
    stubbed: tuple[Store[ChatMessage], Stubber], code: str
) -> None:
    store, stubber = stubbed
    stubber.add_response("get_item", {})
    stubber.add_response("update_item", {})
    stubber.add_client_error("put_item", code, "oh", http_status_code=500)
    for operation in ("get_item", "update_item", "put_item"):  # it is not there: it is sent again
        stubber.add_response(operation, {})
    assert (await store.session("s").append([ChatMessage.user("a")])).added == 1
    stubber.assert_no_pending_responses()


async def test_where_nobody_can_look_the_outcome_is_unknown(
    stubbed: tuple[Store[ChatMessage], Stubber], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stubber = stubbed
    stubber.add_response("get_item", {})
    stubber.add_response("update_item", {})
    stubber.add_client_error("put_item", "InternalServerError", "oh", http_status_code=500)
    for _ in range(200):
        stubber.add_client_error("get_item", "InternalServerError", "oh", http_status_code=500)
    with pytest.raises(OutcomeUnknownError):
        await store.session("s").append([ChatMessage.user("a")])
