"""Redis servers of every kind, for the tests of this folder: `servers` says how each is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.redis import servers

SMOKE = frozenset(
    {
        "test_a_batch_with_a_batch_id_is_stored_once",
        "test_a_fork_begins_with_the_messages_up_to_a_place",
        "test_a_lease_has_one_holder_at_a_time",
        "test_a_message_of_5_mb_works",
        "test_a_message_with_an_id_is_stored_once_however_often_it_is_sent",
        "test_a_thousand_calls_at_once_are_all_answered",
        "test_a_write_to_what_has_expired_begins_a_new_life",
        "test_an_append_leaves_whole_turns_of_the_newest_max_messages",
        "test_erase_takes_a_scope_and_what_is_below_it_and_says_what",
        "test_every_call_works_before_close",
        "test_keys_are_listed_in_the_order_of_their_bytes_by_prefix",
        "test_listing_filters_on_title_and_metadata_by_exact_value",
        "test_many_stores_begin_on_an_empty_database_at_once",
        "test_of_many_who_expect_one_tail_one_appends",
        "test_of_two_compactions_of_one_prefix_one_wins",
        "test_payloads_come_back_equal",
        "test_pop_hands_out_the_newest_oldest_first",
        "test_purge_takes_what_was_not_written_for_so_long",
        "test_sessions_are_listed_by_last_write_newest_first",
        "test_session_ids_are_opaque_and_each_is_its_own",
        "test_state_maps_keys_to_values",
        "test_stream_gives_every_message_once_in_order",
        "test_twenty_writers_of_fifty_batches_lose_double_and_interleave_nothing",
        "test_writers_in_several_processes_lose_double_and_interleave_nothing",
    }
)
"""The part of the contract that another server, or another way to it, may break."""
BYTES = frozenset(
    {
        "test_any_bytes_in_the_place_of_a_message_harm_themselves_alone",
        "test_any_bytes_in_the_place_of_a_state_value_harm_themselves_alone",
    }
)
"""What another protocol, or a client that decodes, may break besides."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of a class that says in ``smoke`` which tests of the contract it wants what it does not want."""

    def wanted(item: pytest.Item) -> bool:
        names = getattr(getattr(item, "cls", None), "smoke", None)
        return names is None or getattr(item, "originalname", item.name) in names

    left_out = {item for item in items if not wanted(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.Server]:
    """A plain server of this test's own, which it may harm."""
    with servers.plain(tmp_path / "server") as started:
        yield started


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Secured]:
    """A server that speaks TLS alone, to one user who is confined to keys that begin with ``app:``."""
    with servers.Secured(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture(scope="session")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Replicated]:
    """A master and a replica under three sentinels, which no test may harm."""
    with servers.Replicated(tmp_path_factory.mktemp("replicated")) as started:
        yield started


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Cluster]:
    """Three masters with a third of the slots each."""
    with servers.Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
