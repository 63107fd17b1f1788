"""Redis servers of every kind, and ways to reach them: each keeps the part of the contract that it may break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio
from tests.redis import servers
from tests.redis.conftest import BYTES, SMOKE
from tests.redis.servers import Cluster, Replicated, Secured, Server

from chatkeep import ChatMessage, Store, open_store
from chatkeep.errors import ChatkeepError, ConfigError, StoreError, StoreUnavailableError
from chatkeep.testing import StoreContract

pytestmark = pytest.mark.once


class Smoke(StoreContract):
    """The part of the contract that is named in `SMOKE`."""

    smoke = SMOKE
    tick = 0.3


def test_every_test_of_the_smoke_part_is_one_of_the_contract() -> None:
    assert {name for name in SMOKE | BYTES if not hasattr(StoreContract, name)} == set()


# URLs


class TestUnixSocket(Smoke):
    @pytest.fixture
    def url(self) -> str:
        return f"unix://{servers.shared().settings['unixsocket']}?db=1&prefix={servers.prefix()}"


class TestRESP2(Smoke):
    smoke = SMOKE | BYTES

    @pytest.fixture
    def url(self) -> str:
        return servers.shared().url(protocol=2, prefix=servers.prefix())


class TestRESP3(Smoke):
    smoke = SMOKE | BYTES

    @pytest.fixture
    def url(self) -> str:
        return servers.shared().url(protocol=3, prefix=servers.prefix())


class TestTLSAndAConfinedUser(Smoke):
    @pytest.fixture
    def url(self, secured: Secured) -> str:
        return secured.url(prefix=f"app:{servers.prefix()}")


class TestSentinel(Smoke):
    @pytest.fixture
    def url(self, replicated: Replicated) -> str:
        return replicated.url(prefix=servers.prefix())


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        program = servers.valkey()
    except servers.MissingServerError as reason:
        pytest.skip(str(reason))
    with Server(tmp_path_factory.mktemp("valkey"), program=program) as started:
        yield started


class TestValkey(Smoke):
    @pytest.fixture
    def url(self, valkey: Server) -> str:
        return valkey.url(prefix=servers.prefix()).replace("redis://", "valkey://")


# A client of the caller's


class TestOwnClient(Smoke):
    smoke = SMOKE | BYTES

    @pytest.fixture
    def url(self) -> str:
        return f"redis://?prefix={servers.prefix()}"

    @pytest_asyncio.fixture(params=[False, True], ids=["bytes", "decoded"])
    async def options(self, request: pytest.FixtureRequest) -> AsyncIterator[dict[str, Any]]:
        client = redis.asyncio.Redis(port=servers.shared().port, decode_responses=request.param)
        yield {"client": client}
        assert await client.ping(), "it was closed"
        await client.aclose()


class TestOwnClusterClient(Smoke):
    @pytest.fixture
    def url(self) -> str:
        return f"redis+cluster://?prefix={servers.prefix()}"

    @pytest_asyncio.fixture(params=[False, True], ids=["bytes", "decoded"])
    async def options(self, request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[dict[str, Any]]:
        client = redis.asyncio.RedisCluster(
            port=cluster.nodes[0].port, host="127.0.0.1", decode_responses=request.param
        )
        yield {"client": client}
        assert await client.ping(), "it was closed"
        await client.aclose()


class TestOwnSentinelClient(Smoke):
    @pytest.fixture
    def url(self) -> str:
        return f"redis+sentinel://?prefix={servers.prefix()}"

    @pytest_asyncio.fixture
    async def options(self, replicated: Replicated) -> AsyncIterator[dict[str, Any]]:
        sentinel = redis.asyncio.Sentinel([("127.0.0.1", each.port) for each in replicated.sentinels])
        client = sentinel.master_for(Replicated.NAME)
        yield {"client": client}
        assert await client.ping(), "it was closed"
        await client.aclose()
        await asyncio.gather(*(each.aclose() for each in sentinel.sentinels))


# What is refused


async def append(store: Store[ChatMessage], session: str = "s", text: str = "hello") -> None:
    await store.session(session).append([ChatMessage.user(text)])


async def refused(url: str, **options: Any) -> ChatkeepError:
    """The error of a store that cannot work."""
    store = open_store(url, connect_timeout=5.0, timeout=5.0, **options)
    try:
        await append(store)
    except ChatkeepError as error:
        return error
    finally:
        await store.close()
    raise AssertionError("it works")


def chain(error: BaseException | None) -> str:
    """All that a traceback would show of an error and its causes."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


async def test_a_certificate_of_an_unknown_authority_is_refused_in_words(secured: Secured) -> None:
    error = await refused(secured.url().partition("&ssl_ca_certs")[0])
    assert isinstance(error, StoreUnavailableError)
    assert "certificate that is not trusted" in str(error)
    assert "ssl_ca_certs=" in str(error)
    assert isinstance(error.__cause__, Exception)


async def test_an_authority_whose_file_is_not_there_is_said(secured: Secured) -> None:
    error = await refused(secured.url(ssl_ca_certs="/nowhere/ca.pem"))
    assert isinstance(error, StoreUnavailableError)
    assert "a file that its ssl_ options name" in str(error)


async def test_speaking_plainly_to_a_server_that_wants_tls_is_unavailable_and_points_to_tls(secured: Secured) -> None:
    error = await refused(f"redis://127.0.0.1:{secured.port}/0")
    assert isinstance(error, StoreUnavailableError)
    assert "rediss://" in str(error)


async def test_a_wrong_password_is_said_and_not_shown(secured: Secured) -> None:
    url = f"rediss://app:not-the-right-one@{secured.address}/0?prefix=app:&ssl_ca_certs={secured.authority}"
    error = await refused(url)
    assert isinstance(error, StoreUnavailableError)
    assert "password" in str(error).lower()
    assert "not-the-right-one" not in chain(error)


async def test_keys_that_a_user_may_not_touch_are_an_error_that_names_the_prefix(secured: Secured) -> None:
    for prefix in ("other:", ""):
        error = await refused(secured.url(prefix=prefix))
        assert isinstance(error, StoreError)
        assert "prefix" in str(error)
        assert "p@ss" not in chain(error)


async def test_a_wrong_master_name_is_said(replicated: Replicated) -> None:
    error = await refused(replicated.url().replace(Replicated.NAME, "nobody"))
    assert isinstance(error, StoreUnavailableError)
    assert "nobody" in str(error)
    assert "see to the name" in str(error)


async def test_sentinels_that_are_away_and_servers_that_are_none_are_said_in_few_words(
    replicated: Replicated,
) -> None:
    away = await refused(f"redis+sentinel://127.0.0.1:{servers.free_port()}/main")
    assert "its sentinels answer" in str(away)
    none = await refused(f"redis+sentinel://{servers.shared().address}/main")
    assert "no sentinel" in str(none)
    one = await refused(f"redis://{replicated.sentinels[0].address}")
    assert "redis+sentinel://" in str(one)
    assert max(len(str(error)) for error in (away, none, one)) < 300


async def test_a_user_of_a_cluster_may_do_all_with_one_more_command_than_elsewhere(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as own:

        def allow(rules: str) -> None:
            for node in own.nodes:
                node.call("ACL", "SETUSER", "app", "reset", "on", ">some-password", *rules.split())

        url = own.url(prefix="app:").replace("://", "://app:some-password@")
        allow(Secured.RULES)
        error = await refused(url)
        assert type(error) is StoreError
        assert "does not permit" in str(error)
        assert "is refused" not in str(error)
        allow(f"{Secured.RULES} {Secured.CLUSTER_RULES}")
        for node in own.nodes:
            node.call("ACL", "LOG", "RESET")
        async with open_store(url) as store:
            await asyncio.gather(*(append(store, f"s-{number}") for number in range(30)))
            assert len(await store.list_sessions()) == 30
            holder, slot = next(
                (node, node.call("CLUSTER", "KEYSLOT", key)) for node in own.nodes for key in node.call("KEYS", "*head")
            )
            await asyncio.to_thread(move, own, slot, next(node for node in own.nodes if node is not holder))
            for number in range(30):
                await append(store, f"s-{number}")
            assert (await store.purge(older_than=0)).sessions == 30
        assert [entry for node in own.nodes for entry in node.call("ACL", "LOG")] == []
        with pytest.raises(ChatkeepError, match="password"):
            raise await refused(url.replace("some-password", "not-the-right-one"))
    gone = await refused(url)
    assert "cannot be reached" in str(gone)


async def test_a_cluster_that_is_addressed_as_one_server_is_said_to_be_one(cluster: Cluster) -> None:
    for node in cluster.nodes:
        store = open_store(node.url(prefix=servers.prefix()), timeout=5.0)
        with pytest.raises(StoreError, match=r"redis\+cluster://"):
            await store.ping()
        outcomes = await asyncio.gather(*(append(store, f"s-{number}") for number in range(20)), return_exceptions=True)
        await store.close()
        errors = [error for error in outcomes if error is not None]
        assert errors, "some sessions belong to other nodes"
        for error in errors:
            assert isinstance(error, StoreError)
            assert "redis+cluster://" in str(error)


async def test_one_server_that_is_addressed_as_a_cluster_is_said_to_be_none() -> None:
    error = await refused(servers.shared().url().replace("redis://", "redis+cluster://"))
    assert isinstance(error, StoreUnavailableError | ConfigError)
    assert "cluster" in str(error)


# What a server sees


async def test_a_thousand_tasks_share_a_few_connections(server: Server) -> None:
    async with open_store(server.url()) as store:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                with server.client() as client:
                    most = max(most, len(client.client_list()) - 1)
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        for _ in range(3):
            await asyncio.gather(*(append(store, f"s-{number}") for number in range(1000)))
            await asyncio.gather(*(store.session(f"s-{number}").messages() for number in range(1000)))
        watching.cancel()
        assert 1 <= most <= 8


async def test_sessions_of_a_cluster_are_spread_and_each_is_in_one_place(cluster: Cluster) -> None:
    prefix = servers.prefix()
    async with open_store(cluster.url(prefix=prefix)) as store:
        await asyncio.gather(*(append(store, f"s-{number}") for number in range(60)))
        for number in range(60):
            await store.session(f"s-{number}").state.set("k", 1)
        found = Counter[int]()
        tags: dict[str, int] = {}
        for place, node in enumerate(cluster.nodes):
            with node.client() as client:
                for key in client.scan_iter(match=f"{prefix}*", count=10_000):
                    tag = key[key.index("{") : key.index("}")]
                    assert tags.setdefault(tag, place) == place
                    found[place] += 1
        assert len(tags) >= 60
        assert all(found[place] > 30 for place in range(3))
        assert len(await store.list_sessions()) == 60


async def test_a_slot_that_moves_to_another_node_takes_its_sessions_along_unnoticed(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as own:
        async with open_store(own.url()) as store:
            await append(store, text="0")
            holder, slot = next(
                (node, node.call("CLUSTER", "KEYSLOT", key))
                for node in own.nodes
                for key in node.call("KEYS", "*")
                if len(node.call("CLUSTER", "GETKEYSINSLOT", node.call("CLUSTER", "KEYSLOT", key), 10)) > 1
            )
            stop = asyncio.Event()

            async def write() -> int:
                number = 1
                while not stop.is_set():
                    await append(store, text=str(number))
                    number += 1
                return number

            writing = asyncio.create_task(write())
            for target in [node for node in own.nodes if node is not holder] + [holder]:
                await asyncio.to_thread(move, own, slot, target)
                await asyncio.sleep(0.05)
            stop.set()
            written = await writing
            assert [message.text for message in await store.session("s").messages()] == [
                str(number) for number in range(written)
            ]


def move(cluster: Cluster, slot: int, target: Server) -> None:
    """Give a slot and what is in it to another node, as redis-cli does it."""
    names = {node: node.call("CLUSTER", "MYID") for node in cluster.nodes}
    source = next(node for node in cluster.nodes if node.call("CLUSTER", "COUNTKEYSINSLOT", slot))
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, source, *cluster.nodes):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", names[target])


async def test_a_node_of_a_cluster_that_is_gone_takes_its_own_sessions_with_it_and_no_others(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", whole=False) as own:
        async with open_store(own.url(), timeout=3.0, connect_timeout=3.0) as store:
            sessions = [store.session(f"s-{number}") for number in range(30)]
            await asyncio.gather(*(append(store, session.id) for session in sessions))
            own.nodes[2].kill()
            outcomes = await asyncio.gather(*(session.messages() for session in sessions), return_exceptions=True)
            errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert 0 < len(errors) < 30
            assert {type(error) for error in errors} <= {StoreUnavailableError}
            assert len([outcome for outcome in outcomes if outcome == [ChatMessage.user("hello")]]) == 30 - len(errors)
