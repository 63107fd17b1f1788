"""Credentials that are missing, refused or expired: what is said of them, and how often they are asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dynamodb import server

from chatkeep import ConfigError, StoreUnavailableError, open_store


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, region or profile in the environment, and configuration in a folder of the test's."""
    if server.program() is not None:
        server.client("ministack")  # which is made once, with the credentials of other tests
    for name in (
        *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def configure(folder: Path, text: str) -> None:
    (folder / "config").write_text(text)


async def refusal(text: str) -> str:
    with pytest.raises((ConfigError, StoreUnavailableError)) as failed:
        async with open_store(text):
            pass
    assert "\n" not in str(failed.value)
    return str(failed.value)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The first lines of what is asked of a metadata service that never answers."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                asked.append(connection.recv(4096).decode("latin-1").partition("\r\n")[0])
                connections.append(connection)

        connections: list[socket.socket] = []
        threading.Thread(target=listen, daemon=True).start()
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        port = listening.getsockname()[1]
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}")
        yield asked
        listening.shutdown(socket.SHUT_RDWR)
    for each in connections:
        each.close()


async def test_a_missing_region_or_profile_is_said_without_asking_the_metadata_service(metadata: list[str]) -> None:
    assert "the region is missing" in await refusal("dynamodb:///Chats")
    assert "nobody" in await refusal("dynamodb://eu-west-1/Chats?profile=nobody")
    assert metadata == []


async def test_without_credentials_the_metadata_service_is_asked_once_and_not_again(metadata: list[str]) -> None:
    assert "boto3 finds no credentials" in await refusal("dynamodb://eu-west-1/Chats")
    assert metadata, "boto3 does not ask: there is nothing to test"
    assert len(metadata) <= 2


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken"])
async def test_a_role_that_may_not_be_assumed_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    configure(
        tmp_path,
        "[profile own]\naws_access_key_id = own\naws_secret_access_key = own-s3cret\n"
        "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/chats\nsource_profile = own\nregion = eu-west-1\n",
    )
    call, asked = BaseClient._make_api_call, list[str]()  # type: ignore[attr-defined]

    def refuse(client: BaseClient, operation: str, request: dict[str, Any]) -> Any:
        asked.append(operation)
        if operation != "AssumeRole":
            return call(client, operation, request)
        answer: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, operation)

    monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
    said = await refusal("dynamodb:///Chats?profile=role")
    assert "credentials are refused" in said
    assert "s3cret" not in said
    assert asked.count("AssumeRole") == 1


@pytest.mark.parametrize("name", ["UnauthorizedSSOTokenError", "SSOTokenLoadError", "MetadataRetrievalError"])
async def test_credentials_that_cannot_be_renewed_are_said_at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import botocore.exceptions
    from botocore.client import BaseClient

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    asked = list[str]()

    def refuse(client: BaseClient, operation: str, request: dict[str, Any]) -> Any:
        asked.append(operation)
        raise getattr(botocore.exceptions, name)(profile_name="p", error_msg="no")

    monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
    assert "finds no credentials" in await refusal("dynamodb://eu-west-1/Chats")
    assert len(asked) == 1
