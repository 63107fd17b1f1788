"""What is DynamoDB's own: what calls cost, sizes, the table, URLs, credentials, threads, expiry, the stored form."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import boto3
import pytest
import pytest_asyncio
from tests.dynamodb import server
from tests.dynamodb.proxy import proxy, through

from chatkeep import ChatMessage, ConfigError, InvalidURLError, Store, StoreError, StoreUnavailableError, open_store
from chatkeep.documents import DocumentBackend
from chatkeep.testing.harness import Harness, texts, turn
from chatkeep_dynamodb import table
from chatkeep_dynamodb.clock import ServerClock
from chatkeep_dynamodb.driver import DynamoDriver

pytestmark = pytest.mark.skipif(server.program() is None, reason=server.MISSING["ministack"])


@pytest.fixture
def url() -> str:
    return server.empty_table()


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[Store[ChatMessage]]:
    async with open_store(url) as opened:
        yield opened


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def items(url: str) -> list[dict[str, Any]]:
    """Everything in the table, by a scan, which the store never does."""
    pages = server.client("ministack").get_paginator("scan").paginate(TableName=name_of(url))
    return [item for page in pages for item in page["Items"]]


def size(item: dict[str, Any]) -> int:
    """About how many bytes an item takes, as DynamoDB counts: names and values."""

    def of(value: dict[str, Any]) -> int:
        ((kind, held),) = value.items()
        return 3 + sum(1 + of(each) for each in held) if kind == "L" else len(held)

    return sum(len(name) + of(value) for name, value in item.items())


def driver_of(store: Store[Any]) -> DynamoDriver:
    return cast("DynamoDriver", cast("DocumentBackend", store.backend).driver)


# What a call costs


async def test_an_append_is_one_request_and_one_item_and_so_is_reading_the_newest() -> None:
    async with proxy() as between:
        url = through(between, "ttl=30d")
        async with open_store(url) as store:
            session = store.session("s")
            await store.ping()
            between.count()
            await session.append(turn(1))
            assert between.count() == {"GetItem": 1, "UpdateItem": 1, "PutItem": 1}  # to look, the catalogue, the head
            for number in range(2, 11):
                await session.append(turn(number))
            assert between.count() == {"UpdateItem": 9}
            assert len(await session.messages(last=20)) == 20
            assert between.count() == {"GetItem": 1}
            await session.state.set("k", 1)
            assert between.count() == {"UpdateItem": 1}
            assert await store.list_sessions()
            assert between.count() == {"Query": 4, "BatchGetItem": 1}
            assert await store.scoped(tenant="acme", user="alice").list_sessions() == []
            assert between.count() == {"Query": 1}
    async with proxy() as between, open_store(through(between, "ttl=30d")) as store:
        session = store.session("s")
        await session.append([ChatMessage.user("x", id="m0")])
        between.count()
        for number in range(1, 40):
            await session.append([ChatMessage.user("x", id=f"m{number}")])
        assert between.count() == {"UpdateItem": 39}


async def test_a_whole_transcript_that_is_sent_again_is_known_by_a_few_requests() -> None:
    async with proxy() as between, open_store(through(between)) as store:
        session = store.session("s")
        history = [ChatMessage.user(f"{place} " + "x" * 200, id=f"m{place}") for place in range(500)]
        await session.append(history)
        between.count()
        assert (await session.append([*history, ChatMessage.user("new", id="new")])).added == 1
        assert between.count() == {"BatchGetItem": 1, "UpdateItem": 1}
        assert (await session.append(history[:3])).added == 0
        assert between.count() == {"Query": 3, "UpdateItem": 1}


async def test_an_append_writes_few_units_however_long_the_conversation_is(url: str) -> None:
    async with open_store(f"{url}&ttl=30d") as store:
        session = store.session("s")
        sizes = list[int]()
        for number in range(100):
            await session.append([*turn(number), ChatMessage.assistant("word " * 60)] * 10)
            sizes += [size(item) for item in items(url) if item["sk"]["B"] == b"H"]
    assert max(sizes) < 8 * 1024
    assert sum(sizes[50:]) < 1.2 * sum(sizes[:50])


async def test_the_index_of_a_listing_is_written_once_in_ten_seconds_at_most(url: str) -> None:
    async with open_store(url) as store:
        session, found = store.session("s"), set[bytes]()
        for number in range(30):
            await session.append(turn(number))
            await Harness().pass_time(store, 1.0)
            found |= {item["written"]["B"] for item in items(url) if "written" in item}
    assert 3 <= len(found) <= 5


async def test_what_lies_below_is_looked_through_once_for_all_pages_of_a_listing() -> None:
    async with proxy() as between, open_store(through(between)) as store:
        acme = store.scoped(tenant="acme")
        views = [acme.scoped(user=f"u{number:02}") for number in range(40)]
        await asyncio.gather(*(view.session("s").append(turn(1)) for view in views))
        await Harness().pass_time(store, 3600)
        between.count()
        first = await acme.list_sessions(below=True, limit=10)
        assert between.count() == {"Query": 4, "BatchGetItem": 1}
        found = [info.scope.user for info in first]
        written, deleted, *others = sorted({f"u{number:02}" for number in range(40)} - set(found))
        await acme.scoped(user=written).session("s").append(turn(2))
        await acme.scoped(user=deleted).session("s").delete()
        await acme.scoped(user="new").session("s").append(turn(1))
        between.count()
        page = first
        while page.next:
            page = await acme.list_sessions(below=True, limit=10, after=page.next)
            found += [info.scope.user for info in page]
        assert between.count() == {"BatchGetItem": 4}
        assert sorted(map(str, found)) == sorted([*(str(info.scope.user) for info in first), *others])
        newest = await acme.list_sessions(below=True, limit=2)
        assert {info.scope.user for info in newest} == {"new", written}


async def test_no_call_scans_and_none_but_create_manages_the_table() -> None:
    allowed = "GetItem BatchGetItem Query PutItem UpdateItem DeleteItem BatchWriteItem"
    async with proxy() as between:
        async with open_store(through(between, "ttl=30d")) as store:
            scope = store.scoped(tenant="acme", user="alice")
            for number in range(3):
                session = scope.session(f"s{number}")
                await session.append([ChatMessage.user(str(place), id=f"m{place}") for place in range(200)])
                await session.append([ChatMessage.user("again", id="m3")])
                await session.update(service_session_id=f"resp-{number}")
                await session.state.update({f"k{place}": "x" * 500 for place in range(40)})
                assert len(await session.messages()) == 200
            assert await scope.find_by_service_id("resp-1")
            assert len(await store.list_sessions(below=True)) == 3
            await scope.session("s0").delete()
            await Harness().pass_time(store, 40 * 86_400)
            await store.sweep()
            await scope.erase()
        assert set(between.count()) == set(allowed.split())


# No wall


async def test_nothing_that_may_be_stored_meets_a_limit_of_dynamodbs(url: str) -> None:
    async with open_store(url) as store:
        session, history = store.session("s"), list[ChatMessage]()
        for begin in range(0, 10_000, 250):
            batch = [ChatMessage.user(f"{begin + place} " + "x" * 80) for place in range(250)]
            history += batch
            await session.append(batch)
        large = ChatMessage.user("".join(map(chr, range(0x4E00, 0x9FA5))) * 80)
        assert len(large.text.encode()) > 5_000_000
        await session.append([large])
        await session.append([ChatMessage.user(f"{place}", id=f"m{place}") for place in range(300)])
        assert (await session.messages())[:10_001] == [*history, large]
        assert await session.count() == 10_301
        assert texts(await session.messages(last=1)) == ["299"]
        await session.state.set("large", "é" * 500_000)
        for begin in range(0, 10_000, 2_500):
            await session.state.update({f"k{begin + place:05}": place for place in range(2_500)})
        assert len(await session.state.keys()) == 10_001
        assert await session.state.get("large") == "é" * 500_000
        found = [size(item) for item in items(url)]
        assert max(found) < 390 * 1024
        await session.delete()
        assert len(items(url)) == 2  # what says that it is gone, and the catalogue's


async def test_hundreds_of_logs_fit_a_head(url: str) -> None:
    async with open_store(url) as store:
        session = store.session("s")
        for number in range(200):
            await session.log(f"agent-{number}").append([ChatMessage.user("y" * 700)] * 40)
        assert len(await session.log("agent-0").messages()) == 40
        assert max(size(item) for item in items(url)) < 200 * 1024


# The table


async def test_a_table_is_made_once_however_many_open_it_at_once() -> None:
    endpoint = server.shared("ministack").endpoint
    url = f"dynamodb://{server.REGION}/Made?endpoint_url={endpoint}&create=true&recovery=true"

    async def use(number: int) -> None:
        async with open_store(url) as store:
            await store.session(f"s{number}").append(turn(number))

    await asyncio.gather(*map(use, range(10)))
    client = server.client("ministack")
    described = client.describe_table(TableName="Made")["Table"]
    assert table.lacking(described) == []
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    backups = client.describe_continuous_backups(TableName="Made")["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
    async with open_store(url) as store:
        details = (await store.ping()).details
        assert details["ttl"] == "expires"
        assert not details.keys() & {"missing", "denied"}
        assert len(await store.list_sessions()) == 10


async def test_a_table_that_is_not_there_or_not_as_it_must_be_is_said_in_words() -> None:
    endpoint, client = server.shared("ministack").endpoint, server.client("ministack")
    url = f"dynamodb://{server.REGION}/Absent?endpoint_url={endpoint}"
    with pytest.raises(StoreUnavailableError, match="create=true"):
        async with open_store(url):
            pass
    strings = [{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")]
    keys = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
    client.create_table(
        TableName="Another", AttributeDefinitions=strings, KeySchema=keys, BillingMode="PAY_PER_REQUEST"
    )
    with pytest.raises(StoreError, match=r"chatkeep_listing is missing.*binary"):
        async with open_store(url.replace("Absent", "Another") + "&create=true"):
            pass


async def test_ping_says_what_is_missing_and_what_is_denied() -> None:
    client = server.client("ministack")
    wanted = table.definition("Bare", kms_key=None)
    wanted["GlobalSecondaryIndexes"] = wanted["GlobalSecondaryIndexes"][:1]
    used = {"pk", "sk", "listing", "written"}
    wanted["AttributeDefinitions"] = [each for each in wanted["AttributeDefinitions"] if each["AttributeName"] in used]
    client.create_table(**wanted)
    async with proxy() as between:
        between.fault = lambda request: "denied" if request.operation == "PutItem" else None
        url = f"dynamodb://{server.REGION}/Bare?endpoint_url=http://127.0.0.1:{between.port}"
        async with open_store(url) as store:
            details = (await store.ping()).details
        assert details["missing"] == [
            "the index chatkeep_service is missing",
            "the index chatkeep_sweep is missing",
            "the table's TTL is not on the attribute expires",
        ]
        assert details["denied"] == ["dynamodb:PutItem"]
        between.fault = lambda request: "denied" if request.operation.startswith("Describe") else None
        async with open_store(url) as store:
            assert "DescribeTable is not allowed" in (await store.ping()).details["unknown"]


# URLs, clients and credentials


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("dynamodb://eu-west-1", InvalidURLError, "table is missing"),
        ("dynamodb://eu-west-1/a", InvalidURLError, "3 to 255"),
        ("dynamodb://eu-west-1/Chats/More", InvalidURLError, "name of a table"),
        ("dynamodb://localhost:8000/Chats", InvalidURLError, "endpoint_url"),
        ("dynamodb://key:s3cret-pw@eu-west-1/Chats", InvalidURLError, "credentials come from"),
        ("dynamodb://eu-west-1/Chats?aws_secret_access_key=s3cret-pw", ConfigError, "no option"),
        ("dynamodb://eu-west-1/Chats?connections=0", ConfigError, "connections"),
    ],
)
async def test_a_url_that_is_wrong_is_an_error_that_shows_no_secret(
    text: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as failed:
        open_store(text)
    assert "s3cret" not in str(failed.value)


async def test_a_missing_region_credential_or_profile_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    server.shared("ministack")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    async def refusal(text: str) -> str:
        with pytest.raises((ConfigError, StoreUnavailableError)) as failed:
            async with open_store(text):
                pass
        return str(failed.value)

    assert "the region is missing" in await refusal("dynamodb:///Chats")
    assert "nobody" in await refusal("dynamodb://eu-west-1/Chats?profile=nobody")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    said = await refusal("dynamodb://eu-west-1/Chats")
    assert "boto3 finds no credentials" in said
    assert "\n" not in said


async def test_secrets_are_in_no_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="chatkeep")
    async with open_store(url) as store:
        await store.session("s").append(turn(1))
        with pytest.raises(StoreError):
            async with open_store(url.replace("Tests", "Absent")):
                pass
    assert server.CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in caplog.text


async def test_a_client_or_session_of_the_callers_is_used_and_a_client_not_closed(url: str) -> None:
    client, name = server.client("ministack"), name_of(url)
    async with open_store(f"dynamodb:///{name}", client=client) as store:
        await store.session("s").append(turn(1))
    assert client.describe_table(TableName=name)
    session = boto3.Session(region_name=server.REGION)
    endpoint = server.shared("ministack").endpoint
    async with open_store(f"dynamodb:///{name}?endpoint_url={endpoint}", client=session) as store:
        assert texts(await store.session("s").messages()) == ["question 1", "answer 1"]


async def test_a_client_that_cannot_be_used_is_refused_in_words() -> None:
    client = server.client("ministack")
    for wrong, said in (("localhost", "not str"), (boto3.client("sts", region_name="eu-west-1"), "DynamoDB client")):
        with pytest.raises(ConfigError, match=said):
            open_store("dynamodb:///Chats", client=wrong)
    with pytest.raises(ConfigError, match="is for the region"):
        open_store("dynamodb://us-east-1/Chats", client=client)
    with pytest.raises(ConfigError, match="endpoint_url"):
        open_store("dynamodb:///Chats?endpoint_url=http://127.0.0.1:9", client=client)


async def test_a_client_that_repeats_by_itself_takes_its_own_write_for_nobody_elses() -> None:
    from botocore.config import Config

    async with proxy() as between:
        url = through(between)
        retrying = Config(retries={"total_max_attempts": 4, "mode": "standard"})
        endpoint = f"http://127.0.0.1:{between.port}"
        client = boto3.client("dynamodb", region_name=server.REGION, endpoint_url=endpoint, config=retrying)
        async with open_store(f"dynamodb:///{name_of(url)}", client=client) as store:
            session = store.session("s")
            tail = (await session.append([ChatMessage.user("a")])).tail
            between.once("failed", "UpdateItem")
            assert (await session.append([ChatMessage.user("b")], expected_tail=tail)).added == 1
            assert texts(await session.messages()) == ["a", "b"]
        client.close()


# Threads and event loops


async def test_the_event_loop_is_never_blocked_by_calls(store: Store[ChatMessage]) -> None:
    await store.session("s").append([ChatMessage.user("x" * 100)] * 50)
    longest, stop = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal longest
        while not stop.is_set():
            began = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - began - 0.001)

    async with proxy() as between:
        slow = between._passed_on

        async def slowly(head: dict[str, str], body: bytes) -> bytes:
            await asyncio.sleep(0.2)
            return await slow(head, body)

        between._passed_on = slowly  # type: ignore[method-assign]
        async with open_store(through(between)) as other:
            await other.open()
            watching = asyncio.create_task(watch())
            began = time.monotonic()
            await asyncio.gather(*(other.session(f"s{number}").exists() for number in range(200)))
            taken = time.monotonic() - began
            stop.set()
            await watching
    assert taken > 2.0, "200 calls of 0.2 s on 16 threads were not slow"
    assert longest < taken / 4, f"the event loop stood still for {longest:.3f} s of {taken:.1f}"


def test_a_new_event_loop_for_each_call_keeps_the_client_as_in_aws_lambda(url: str) -> None:
    store = open_store(url)

    def handler(event: dict[str, str]) -> int:
        async def answer() -> int:
            session = store.session(event["session"])
            await session.append([ChatMessage.user(event["text"])])
            return await session.count()

        return asyncio.run(answer())

    assert [handler({"session": "s", "text": str(number)}) for number in range(3)] == [1, 2, 3]
    made = driver_of(store).calls
    first = made.client
    assert handler({"session": "s", "text": "3"}) == 4
    assert driver_of(store).calls.client is first
    asyncio.run(store.close())


# Expiry and the clock


async def test_items_hold_when_dynamodb_may_delete_them_later_than_they_are_absent(url: str) -> None:
    async with open_store(f"{url}&ttl=1h") as store:
        session = store.session("s")
        began = time.time()
        await session.append([ChatMessage.user("x" * 200, id=f"m{place}") for place in range(200)])
        found = {item["sk"]["B"][:1] or b"C": [] for item in items(url)}
        for item in items(url):
            found[item["sk"]["B"][:1]].append(int(item["expires"]["N"]))
        head = found.pop(b"H")[0]
        assert 3600 < head - began < 2 * 3600
        assert all(moment >= head for moments in found.values() for moment in moments)
        set_before = Counter(item["expires"]["N"] for item in items(url))
        for _ in range(4):  # within the first half of its life nothing is told anew
            await Harness().pass_time(store, 400)
            await session.append(turn(1))
        assert Counter(item["expires"]["N"] for item in items(url))[str(head)] == set_before[str(head)]
        await Harness().pass_time(store, 3700)
        assert not await session.exists()
        assert items(url)


async def test_the_clock_follows_the_services_date_and_never_jumps_where_the_machine_is_right() -> None:
    from email.utils import formatdate

    clock = ServerClock()
    now, wall = time.monotonic(), time.time()
    for number in range(50):
        clock.look(formatdate(wall + number / 10, usegmt=True), now + number / 10, now + number / 10 + 0.01)
    assert clock.time() == pytest.approx(time.time(), abs=0.05)
    clock.look(formatdate(wall + 7200, usegmt=True), now, now + 0.01)
    assert clock.time() == pytest.approx(time.time() + 7200, abs=1.1)
    clock.look("no date", now, now)
    clock.look(None, now, now)
    clock.look(formatdate(wall, usegmt=True), now, now + 0.01)
    assert clock.time() == pytest.approx(time.time(), abs=1.1)


# Many at once


async def test_hot_sessions_make_progress_with_trimming_and_ids(url: str) -> None:
    stores = [open_store(f"{url}&max_messages=40", timeout=60) for _ in range(4)]

    async def write(writer: int) -> None:
        session = stores[writer % 4].session("s")
        for place in range(10):
            await session.append([ChatMessage.user("x", id=f"{writer}.{place}"), ChatMessage.assistant("y")])

    await asyncio.gather(*map(write, range(20)))
    info = await stores[0].session("s").info()
    assert info is not None
    assert info.logs[""].tail.seq == 400
    for store in stores:
        await store.close()


async def test_the_sessions_of_one_scope_are_spread_over_partitions(url: str) -> None:
    async with open_store(url) as store:
        for number in range(60):
            await store.session(f"s{number}").append(turn(number))
        partitions = Counter(item["listing"]["B"] for item in items(url) if "listing" in item)
        catalogue = Counter(item["pk"]["B"] for item in items(url) if "at" in item)
    assert len(partitions) == len(catalogue) == 4
    assert max(partitions.values()) < 40
    assert max(catalogue.values()) < 40


# The stored form


async def test_what_was_deleted_redacted_or_taken_out_is_in_no_item_any_more(url: str) -> None:
    import os
    import zlib

    async with open_store(url) as store:
        session, doomed = store.scoped(user="secret-user").session("s"), store.session("secret-session")
        history = [ChatMessage.user(f"secret-{place} " + os.urandom(50).hex()) for place in range(300)]
        await session.append(history)
        await doomed.append(history)
        await session.redact(7)
        await session.truncate_after(200)
        await session.replace_prefix(100, [ChatMessage.assistant("summary")])
        await doomed.delete()

    def content(value: Any) -> bytes:
        if isinstance(value, bytes):
            return zlib.decompress(value[1:]) if value[:1] == b"\1" and value[1:2] == b"\x78" else value
        if isinstance(value, dict):
            return b"".join(map(content, value.values()))
        return b"".join(map(content, value)) if isinstance(value, list) else b""

    stored = b"".join(map(content, items(url)))
    for gone in (7, 50, 99, 201, 299):
        assert f"secret-{gone} ".encode() not in stored
    assert b"secret-session" not in stored
    assert b"secret-150 " in stored
    assert json.dumps("summary").encode() in stored
