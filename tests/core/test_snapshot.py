"""A session's snapshot."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatkeep.errors import CorruptRecordError, SerializationError
from chatkeep.serializer import SessionSerializer
from chatkeep.snapshot import SessionSnapshot

GOLDEN = json.loads((Path(__file__).parent / "golden" / "format-1.json").read_text(encoding="utf-8"))["snapshot"]
serializer = SessionSerializer()
FULL = SessionSnapshot(
    "support-42",
    {"conversation_id": "conv_1"},
    {"language": "no", "seen": datetime(2024, 5, 15, tzinfo=UTC), "ticket": b"\x00", "$chatkeep": 1},
    {"team": "bags"},
    "Where is my bag?",
)


@pytest.mark.parametrize("snapshot", [FULL, SessionSnapshot("s"), SessionSnapshot("s", "conv_1")])
def test_a_snapshot_comes_back_equal(snapshot: SessionSnapshot) -> None:
    assert SessionSnapshot.from_bytes(snapshot.to_bytes(serializer), serializer) == snapshot
    assert SessionSnapshot.from_dict(snapshot.to_dict()) == snapshot


@given(st.dictionaries(st.text(), st.integers() | st.binary() | st.tuples(st.text())))
def test_whatever_the_serializer_stores_may_be_in_the_state(state: dict[str, Any]) -> None:
    snapshot = SessionSnapshot("s", state=state)
    assert SessionSnapshot.from_bytes(snapshot.to_bytes(serializer), serializer) == snapshot


def test_the_order_of_members_does_not_matter_and_all_but_the_id_may_be_absent() -> None:
    members = FULL.to_dict()
    assert SessionSnapshot.from_dict(dict(reversed(members.items()))) == FULL
    assert SessionSnapshot.from_dict({"session_id": "s", "format": "chatkeep.session/1"}) == SessionSnapshot("s")


def test_the_form_is_json_with_its_version() -> None:
    assert json.loads(SessionSnapshot("s").to_bytes(serializer))["format"] == "chatkeep.session/1"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "chatkeep.session/2"}, "newer chatkeep.*upgrade"),
        ({"format": "chatkeep.session/x"}, "no session snapshot"),
        ({"format": None}, "no session snapshot"),
        ({"format": "other/1"}, "no session snapshot: its 'format' is 'other/1'"),
        ({"mood": 1, "colour": 2}, "no members 'colour', 'mood'"),
        ({"session_id": 5}, "'session_id' is a text, and this is of type int"),
        ({"service_session_id": 5}, "'service_session_id' is a text, an object or null"),
        ({"state": []}, "'state' is an object"),
        ({"metadata": None}, "'metadata' is an object"),
        ({"title": 5}, "'title' is a text or null"),
    ],
)
def test_what_is_no_snapshot_is_refused_naming_why(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptRecordError, match=words):
        SessionSnapshot.from_dict({**FULL.to_dict(), **change})


def test_a_snapshot_needs_its_session_id() -> None:
    with pytest.raises(CorruptRecordError, match="no 'session_id'"):
        SessionSnapshot.from_dict({"format": "chatkeep.session/1"})


@pytest.mark.parametrize("data", [b"[]", b"{", b"null", b'"chatkeep.session/1"'])
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        SessionSnapshot.from_bytes(data, serializer)


def test_what_cannot_be_stored_names_its_place() -> None:
    with pytest.raises(SerializationError) as caught:
        SessionSnapshot("s", state={"a": [object()]}).to_bytes(serializer)
    assert caught.value.path == "$.state.a[0]"


def test_the_form_is_written_and_read_as_it_always_was() -> None:
    assert FULL.to_bytes(serializer).decode() == GOLDEN
    assert SessionSnapshot.from_bytes(GOLDEN.encode(), serializer) == FULL
