"""The stored form of what documents hold is pinned: what this version stores, the next ones read."""

from __future__ import annotations

import pytest

from chatkeep.documents import DocumentBackend
from chatkeep.documents.inmemory import InMemoryDriver
from chatkeep.documents.packing import (
    FORM,
    Body,
    Ref,
    StateLeaf,
    Stored,
    Value,
    pack_directory,
    pack_records,
    pack_refs,
    pack_state,
    unpack_bodies,
    unpack_directory,
    unpack_records,
    unpack_refs,
    unpack_state,
)
from chatkeep.documents.sessions import id_of
from chatkeep.errors import StoreError, StoreFormatError
from chatkeep.records import Expiry, Key, Record, Scope, Span, StateEntry, StateOp, Write

RECORDS = (
    Stored(Record(7, "m7", "user", True, "chat/1", 1700000000.25, None, b'{"role":"user","content":"Hei"}')),
    Stored(Record(8, None, "assistant", False, "chat/1", 1700000001.0, None, b""), Body(b"\x01" * 8, 2, 3, 70000)),
    Stored(Record(9, None, "tool", False, "x/\ud800", 1.0, "é\0", b"\xff\0")),
)
PACKED_RECORDS = (
    b"\x01\x00\x00\x00\xae"
    b'[[7,"m7","user",1,"chat/1",1700000000.25,null,31],'
    b'[8,null,"assistant",0,"chat/1",1700000001.0,null,["0101010101010101",2,3,70000]],'
    b'[9,null,"tool",0,"x/\xed\xa0\x80",1.0,"\xc3\xa9\\u0000",2]]'
    b'{"role":"user","content":"Hei"}\xff\0'
)
STATE = [
    Value(StateEntry("a", "v-0", "json/1", b"1")),
    Value(StateEntry("é", "v-1", "", b""), Body(b"\2" * 8, 1, -1, 9)),
]
PACKED_STATE = b'\x01\x00\x00\x00\x44[["a","v-0","json/1",1],["\xc3\xa9","v-1","",["0202020202020202",1,-1,9]]]1'
REFS = [Ref(b"\3" * 8, 1, 1, 64, 60, 1, 63, 2.5, True, False, 1)]
PACKED_REFS = b'\x01\x00\x00\x00\x36[["0303030303030303",1,1,64,60,1,63,2.5,true,false,1]]'
LEAVES = [StateLeaf("", b"\4" * 8, 1), StateLeaf("m", b"\5" * 8, 2)]
PACKED_LEAVES = b'\x01\x00\x00\x00\x36[["","0404040404040404",1],["m","0505050505050505",2]]'


def test_parts_are_stored_in_form_1() -> None:
    assert FORM == 1
    assert pack_records(RECORDS) == PACKED_RECORDS
    assert pack_state(STATE) == PACKED_STATE
    assert pack_refs(REFS) == PACKED_REFS
    assert pack_directory(LEAVES) == PACKED_LEAVES


def test_parts_of_form_1_are_read() -> None:
    assert unpack_records(PACKED_RECORDS) == RECORDS
    assert unpack_bodies(pack_records(RECORDS[:1])) == [(7, "m7", "chat/1", RECORDS[0].record.payload)]
    assert unpack_state(PACKED_STATE) == STATE
    assert unpack_refs(PACKED_REFS) == REFS
    assert unpack_directory(PACKED_LEAVES) == LEAVES


@pytest.mark.parametrize("unpack", [unpack_records, unpack_state, unpack_refs, unpack_directory])
def test_a_newer_part_is_refused_in_words_and_a_damaged_one_too(unpack: object) -> None:
    with pytest.raises(StoreFormatError, match="form 2, and this version of chatkeep knows form 1: install a newer"):
        unpack(b"\x02" + PACKED_REFS[1:])  # type: ignore[operator]
    for damaged in (b"", b"\x01\0", b"\x01\0\0\0\x05[[[[["):
        with pytest.raises(StoreError, match="damaged"):
            unpack(damaged)  # type: ignore[operator]


ID = "6531b3d1004f33ebf3ecc7c6572ed3dca3e25379"
HEAD = {
    "form", "version", "recent", "number", "scope", "session", "life", "created", "updated", "expires", "ttl", "kept",
    "parts", "meta", "service", "fence", "owner", "leased", "logs", "state", "garbage", "lives", "reap", "due",
}  # fmt: skip
LOG = {"name", "tail", "last", "size", "rewrite", "spilled", "in", "refs", "batches", "gone"}


async def test_a_head_has_these_fields_and_a_newer_one_is_refused_in_words() -> None:
    driver = InMemoryDriver()
    backend, key = DocumentBackend(driver), Key(Scope("shop", "acme", "alice"), "support-42")
    record = Record(0, "m1", "user", True, "chat/1", 5.0, None, b"{}")
    await backend.commit(key, Write(b"1" * 16, append=[record], batch=True, expiry=Expiry(60.0)))
    await backend.commit(key, Write(b"2" * 16, state=[StateOp("k", "json/1", b"1")], meta={"service": '"resp-1"'}))
    (head,) = driver.documents.heads.values()
    assert head.keys() == HEAD
    assert (head["form"], head["scope"], head["session"]) == (1, '["shop","acme","alice"]', "support-42")
    assert (head["meta"], head["service"]) == ('{"service":"\\"resp-1\\""}', '"resp-1"')
    (log,) = head["logs"]
    assert log.keys() == LOG
    assert log["in"] == [pack_records([Stored(record._replace(seq=1))])]
    assert log["batches"] == [[b"1" * 16, 1, 1, None]]
    assert head["state"].keys() == {"count", "in", "directory"}
    assert id_of(key).hex() == ID
    driver.documents.heads[id_of(key)] = {**head, "form": 2}
    with pytest.raises(StoreFormatError, match=r"'support-42' in .* was stored in form 2"):
        await DocumentBackend(driver).read(key, "", Span())
    with pytest.raises(StoreFormatError, match=r"'support-42' in .* was stored in form 2"):
        await DocumentBackend(driver).commit(key, Write(b"3" * 16, append=[record]))
