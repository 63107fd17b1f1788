"""What is MongoDB's own: indexes, expiry by the server, URLs and clients, sizes, and the stored form."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import bson
import pymongo
import pytest
import pytest_asyncio
from pymongo import AsyncMongoClient
from tests.mongodb import server

from chatkeep import ChatMessage, ConfigError, InvalidURLError, Store, StoreError, open_store
from chatkeep.documents import DocumentBackend, Limits
from chatkeep.testing.harness import Harness, texts, turn
from chatkeep_mongodb.driver import MongoDriver
from chatkeep_mongodb.indexes import INDEXES

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(server.program() is None, reason=server.MISSING),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture
def url() -> str:
    return server.empty_database()


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[Store[ChatMessage]]:
    async with open_store(url) as opened:
        yield opened


@contextmanager
def admin(kind: str = "standalone") -> Iterator[pymongo.MongoClient[Any]]:
    with pymongo.MongoClient(f"mongodb://{server.shared(kind)}/?directConnection=true") as client:
        yield client


def driver_of(store: Store[Any]) -> MongoDriver:
    return cast("MongoDriver", cast("DocumentBackend", store.backend).driver)


# Indexes

OPENER = """
import asyncio, sys
from chatkeep import ChatMessage, open_store

async def main(url):
    async def use(number):
        async with open_store(url) as store:
            await store.session(f"s{number}").append([ChatMessage.user("x")])
    await asyncio.gather(*map(use, range(50)))

asyncio.run(main(sys.argv[1]))
"""


async def test_fifty_tasks_in_each_of_four_processes_set_a_fresh_database_up() -> None:
    address = server.shared("standalone")
    with admin() as client:
        client.drop_database("fresh")
        command = (sys.executable, "-c", OPENER, f"mongodb://{address}/fresh")
        processes = [await asyncio.create_subprocess_exec(*command) for _ in range(4)]
        ended = [await process.wait() for process in processes]
        assert ended == [0] * 4
        assert set(client["fresh"]["chatkeep"].index_information()) == {"_id_", *INDEXES}
        client.drop_database("fresh")


async def test_where_somebody_else_makes_the_indexes_ping_says_which_are_missing() -> None:
    with admin() as client:
        client.drop_database("manual")
        async with open_store(f"mongodb://{server.shared('standalone')}/manual?indexes=manual") as store:
            await store.session("s").append(turn(1))
            assert set((await store.ping()).details["missing_indexes"]) == set(INDEXES)
            async with open_store(f"mongodb://{server.shared('standalone')}/manual") as other:
                await other.ping()
            assert "missing_indexes" not in (await store.ping()).details
        client.drop_database("manual")


async def test_a_user_who_may_make_no_index_is_told_what_to_do() -> None:
    guarded = server.Server("--auth")
    guarded.start()
    try:
        with guarded.client() as client:
            client.admin.command("createUser", "root", pwd="root", roles=["root"])
        with pymongo.MongoClient(f"mongodb://root:root@{guarded.address}/?directConnection=true") as client:
            actions = ["find", "insert", "update", "remove", "listIndexes"]
            rights = [{"resource": {"db": "support", "collection": ""}, "actions": actions}]
            client["support"].command("createRole", "writer", privileges=rights, roles=[])
            client["support"].command("createUser", "app", pwd="s3cret", roles=["writer"])
        url = f"mongodb://app:s3cret@{guarded.address}/support?authSource=support"
        async with open_store(f"{url}&indexes=manual") as store:
            await store.session("s").append(turn(1))
            assert await store.session("s").count() == 2
        with pytest.raises(StoreError, match="indexes=manual") as refused:
            async with open_store(url):
                pass
        assert "s3cret" not in str(refused.value)
        with pytest.raises(StoreError, match="refuses this user") as refused:
            async with open_store(url.replace("s3cret", "wr0ng-one")):
                pass
        assert "wr0ng-one" not in str(refused.value)
    finally:
        guarded.remove()


async def test_every_statement_uses_an_index(store: Store[ChatMessage]) -> None:
    with admin() as client:
        database = client["tests"]
        database.drop_collection("system.profile")
        await store.open()
        database.command("profile", 2)
        try:
            await everything(store)
        finally:
            database.command("profile", 0)
        found = list(database["system.profile"].find({"ns": "tests.chatkeep"}))
        database.drop_collection("system.profile")
    plans = {each.get("planSummary", each["op"]) for each in found}
    assert {"COLLSCAN", "EOF"}.isdisjoint(plans), plans
    used = {stage["indexName"] for each in found for stage in stages(each.get("execStats", {})) if "indexName" in stage}
    assert set(INDEXES) - used <= {"chatkeep_reap", "chatkeep_service"}  # the latter only among many sessions


async def test_a_session_is_found_by_its_service_session_id_among_many(store: Store[ChatMessage]) -> None:
    for number in range(300):
        await store.session(f"s{number}").update(service_session_id=f"resp-{number}")
    which = {"scope": store.scope.address, "service": '"resp-7"', "session": {"$gt": ""}}
    with admin() as client:
        found = client["tests"]["chatkeep"].find(which).sort([("updated", -1), ("session", 1)]).limit(2).explain()
    plan = found["executionStats"]
    assert "chatkeep_service" in {stage.get("indexName") for stage in stages(plan["executionStages"])}
    assert (plan["nReturned"], plan["totalDocsExamined"]) == (1, 1)


def stages(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in [*plan.get("inputStages", ()), plan.get("inputStage")]:
        if below:
            yield from stages(below)


async def everything(store: Store[ChatMessage]) -> None:
    """One call of each kind, on sessions with parts."""
    scope = store.scoped(tenant="acme", user="alice")
    for number in range(3):
        session = scope.session(f"s{number}")
        await session.append([ChatMessage.user(str(place), id=f"m{place}") for place in range(200)])
        await session.append([ChatMessage.user("again", id="m3")])
        await session.update(service_session_id=f"resp-{number}")
        await session.state.update({f"k{place}": "x" * 500 for place in range(40)})
        assert len(await session.messages()) == 200
    await scope.state.set("k", 1)
    assert (await scope.find_by_service_id("resp-1")) is not None
    page = await scope.list_sessions(limit=2)
    assert len(page) + len(await scope.list_sessions(limit=2, after=page.next)) == 3
    assert len(await store.list_sessions(below=True)) == 3
    await scope.session("s1").redact(5)
    await scope.session("s1").delete()
    await store.sweep()
    await scope.erase()


# Expiry


async def test_the_server_deletes_what_has_expired(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MongoDriver, "margin", 0.0)
    async with open_store(url, ttl=0.5) as store:
        driver_of(store).limits = Limits(patience=0.0)  # else parts stay for ten minutes longer
        session = store.session("s")
        await session.append([ChatMessage.user(str(place)) for place in range(200)])
        await session.state.set("k", "x" * 50_000)
        with admin() as client:
            assert client["tests"]["chatkeep"].count_documents({}) > 4
            for _ in range(300):
                if not client["tests"]["chatkeep"].count_documents({}):
                    break
                await asyncio.sleep(0.1)
            assert list(client["tests"]["chatkeep"].find({})) == []


async def test_what_has_expired_is_absent_while_the_server_deletes_nothing(url: str) -> None:
    with admin() as client:
        client.admin.command("setParameter", 1, ttlMonitorEnabled=False)
        try:
            async with open_store(url, ttl=0.3) as store:
                session = store.session("s")
                await session.append(turn(1))
                await asyncio.sleep(0.4)
                assert client["tests"]["chatkeep"].count_documents({}) == 1
                assert not await session.exists()
                assert await session.messages() == []
                assert await store.list_sessions() == []
                assert (await session.append(turn(2))).seqs == (1, 2)
                assert (await store.sweep()).expired == 0
                await asyncio.sleep(0.4)
                assert (await store.sweep()).expired == 1
        finally:
            client.admin.command("setParameter", 1, ttlMonitorEnabled=True)


async def test_appends_to_a_session_of_many_parts_rewrite_them_once_per_half_life_at_most(url: str) -> None:
    ttl, appends = 1000.0, 200
    async with open_store(url, ttl=ttl) as store:
        session = store.session("s")
        for _ in range(40):
            await session.append([ChatMessage.user("x")] * 250)
        with admin() as client:
            parts = client["tests"]["chatkeep"].count_documents({"life": {"$exists": True}, "data": {"$exists": True}})
            assert parts > 100

            def updated() -> int:
                found: int = client.admin.command("serverStatus")["metrics"]["document"]["updated"]
                return found

            before = updated()
            for number in range(appends):
                await session.append(turn(number))
                if number == appends // 2:
                    await Harness.pass_time(cast("Harness", None), store, ttl / 4)
            assert updated() - before < appends + 20, "the parts were told of each renewal"
            for _ in range(4):  # four half lives
                await Harness.pass_time(cast("Harness", None), store, ttl / 2)
                await session.append(turn(0))
            assert updated() - before < appends + 20 + 4 * (parts + 30)
            kept = [part["reap"] for part in client["tests"]["chatkeep"].find({"data": {"$exists": True}})]
            (head,) = client["tests"]["chatkeep"].find({"scope": {"$exists": True}})
            assert min(kept) >= head["reap"], "a part would be gone before its session"
        assert await session.count() == 10_000 + 2 * appends + 8


# URLs and clients


async def test_what_is_not_ours_in_the_url_reaches_the_driver_untouched() -> None:
    query = (
        "w=1&journal=true&readConcernLevel=majority&readPreference=secondaryPreferred&appName=shop&maxPoolSize=7"
        "&retryWrites=false&compressors=zlib&ttl=30d&max_messages=50&collection=talks"
    )
    async with open_store(f"mongodb://{server.shared('standalone')}/tests?{query}") as store:
        await store.session("s").append(turn(1))
        collection = driver_of(store)._reader
        options = collection.database.client.options
        assert (options.pool_options.appname, options.pool_options.max_pool_size) == ("shop", 7)
        assert options.retry_writes is False
        assert collection.write_concern.document == {"w": 1, "j": True}
        assert collection.read_concern.level == "majority"
        assert collection.read_preference.name == "SecondaryPreferred"
        assert collection.name == "talks"
        assert (await store.ping()).details["write_concern"] == {"w": 1, "j": True}
    with admin() as client:
        client["tests"].drop_collection("talks")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("tlss=true", "Did you mean tls"),
        ("tttl=30d", "Did you mean ttl"),
        ("maxPoolSize=many", "maxpoolsize"),
        ("readPreference=best", "best"),
        ("driver=mongoengine", "'pymongo' or 'motor'"),
        ("tls=true&tlsCAFile=/no/such/file", "not readable|: .*no such file"),
        ("tls=true&tlsInsecure=true&tlsAllowInvalidCertificates=true", "tlsInsecure"),
    ],
)
async def test_an_option_that_is_wrong_or_unknown_is_an_error(query: str, said: str) -> None:
    with pytest.raises(ConfigError, match="(?i)" + said):
        open_store(f"mongodb://127.0.0.1/tests?{query}")


async def test_writes_that_nobody_acknowledges_are_refused() -> None:
    with pytest.raises(ConfigError, match="w=0"):
        async with open_store(f"mongodb://{server.shared('standalone')}/tests?w=0"):
            pass


async def test_no_error_of_a_url_shows_its_password() -> None:
    for text in (
        "mongodb://app:s3cret-pw@127.0.0.1:9/tests?serverSelectionTimeoutMS=100",
        "mongodb://app:s3cret-pw@127.0.0.1/tests?nonsense=1",
        "mongodb://app:s3cret-pw@127.0.0.1:port/tests",
        "mongodb://app:s3cret-pw@127.0.0.1/a.b",
    ):
        with pytest.raises((ConfigError, StoreError, ValueError)) as failed:
            async with open_store(text, connect_timeout=1.0):
                pass
        assert "s3cret-pw" not in str(failed.value)
        assert "s3cret-pw" not in repr(failed.value.__cause__)


@pytest.mark.parametrize(("path", "said"), [("/a.b", "database"), ("/" + "x" * 64, "63"), ("/a%20b", "database")])
async def test_a_path_that_is_no_database_is_refused(path: str, said: str) -> None:
    with pytest.raises(InvalidURLError, match=said):
        open_store(f"mongodb://127.0.0.1{path}")


def clients() -> dict[str, Callable[[str], Any]]:
    from motor.motor_asyncio import AsyncIOMotorClient

    return {
        "AsyncMongoClient": AsyncMongoClient,
        "AsyncDatabase": lambda url: AsyncMongoClient(url)["tests"],
        "AsyncIOMotorClient": AsyncIOMotorClient,
        "AsyncIOMotorDatabase": lambda url: AsyncIOMotorClient(url)["tests"],
    }


@pytest.mark.parametrize("kind", ["AsyncMongoClient", "AsyncDatabase", "AsyncIOMotorClient", "AsyncIOMotorDatabase"])
async def test_a_client_or_database_of_the_callers_is_used_and_not_closed(url: str, kind: str) -> None:
    pytest.importorskip("motor")
    given = clients()[kind](url)
    async with open_store("mongodb:///tests", client=given) as store:
        await store.session("s").append(turn(1))
    async with open_store(url) as other:
        assert texts(await other.session("s").messages()) == ["question 1", "answer 1"]
    client = given.client if "Database" in kind else given
    assert (await client.admin.command("ping"))["ok"] == 1
    closing = client.close()
    if closing is not None:
        await closing


async def test_a_client_that_cannot_be_used_is_refused_in_words(url: str) -> None:
    with pymongo.MongoClient(url) as blocking, pytest.raises(ConfigError, match="blocks the event loop"):
        open_store("mongodb:///tests", client=blocking)
    with pytest.raises(ConfigError, match="not str"):
        open_store("mongodb:///tests", client="localhost")
    async with AsyncMongoClient(url) as client:
        with pytest.raises(ConfigError, match="names no host"):
            open_store("mongodb://localhost/tests", client=client)
        with pytest.raises(ConfigError, match="is the database 'other'"):
            open_store("mongodb:///tests", client=client["other"])


# Sizes and the stored form


async def test_messages_of_20_mb_and_hundreds_of_logs_stay_far_from_what_a_document_may_hold(url: str) -> None:
    async with open_store(url, max_message_bytes="24MB", max_batch_bytes="96MB") as store:
        session = store.session("s")
        large = "é" * 10_000_000
        await session.append([ChatMessage.user(large), ChatMessage.assistant("short")])
        await session.state.set("large", "x" * 1_000_000)
        for number in range(200):
            await session.log(f"agent-{number}").append([ChatMessage.user("y" * 700)] * 40)
        assert (await session.messages())[0].text == large
        assert await session.log("agent-0").count() == 40
        assert len(await session.log("agent-0").messages()) == 40
        with admin() as client:
            sizes = [len(raw.raw) for raw in raw_documents(client)]
    assert max(sizes) < 5_000_000
    assert sum(sizes) < 40_000_000


def raw_documents(client: pymongo.MongoClient[Any]) -> Iterator[bson.raw_bson.RawBSONDocument]:
    codec = bson.codec_options.CodecOptions(document_class=bson.raw_bson.RawBSONDocument)
    yield from client["tests"].get_collection("chatkeep", codec_options=codec).find({})


async def test_a_head_that_would_be_too_large_is_an_error_in_words_and_nothing_is_written(url: str) -> None:
    async with open_store(url) as store:
        await store.session("s").append(turn(1))
    with admin() as client:
        padding = "x" * (16 * 1024 * 1024 - 1500)
        client["tests"]["chatkeep"].update_one({"session": "s"}, {"$set": {"padding": padding}})
    async with open_store(url) as store:
        with pytest.raises(StoreError, match=r"larger than the 16 MB .* too many logs"):
            await store.session("s").append([ChatMessage.user("y" * 3000)])
        assert texts(await store.session("s").messages()) == ["question 1", "answer 1"]


async def test_what_was_deleted_redacted_or_taken_out_is_in_no_document_any_more(store: Store[ChatMessage]) -> None:
    session, doomed = store.session("s"), store.session("t")
    history = [ChatMessage.user(f"secret-{place} " + "x" * 100) for place in range(300)]
    await session.append(history)
    await doomed.append(history)
    await session.redact(7)
    await session.truncate_after(200)
    await session.replace_prefix(100, [ChatMessage.assistant("summary")])
    await doomed.delete()
    with admin() as client:
        stored = b"".join(raw.raw for raw in raw_documents(client))
    for gone in (7, 50, 99, 201, 299):
        assert f"secret-{gone} ".encode() not in stored
    assert b"secret-150 " in stored
    assert json.dumps("summary").encode() in stored


async def test_a_ping_says_what_answers(store: Store[ChatMessage]) -> None:
    health = await store.ping()
    assert health.backend == "mongodb"
    assert health.server.startswith("MongoDB ")
    assert health.details["topology"] == "standalone"
    async with open_store(server.empty_database("replica set")) as other:
        details = (await other.ping()).details
        assert (details["topology"], details["write_concern"]) == ("rs0", {"w": "majority"})
