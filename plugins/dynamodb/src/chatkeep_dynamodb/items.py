"""Heads and parts as items of the table, and back: keys, attributes, and the updates that change a head.

Everything that chatkeep stores lies in binary attributes, never in a map of DynamoDB's: a head's logs as lists of what
was appended, all else of it as one JSON text with the bytes in it behind. Binary is deflated where that makes it
smaller. What an index or the table's TTL needs stands beside it, in attributes of its own.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from chatkeep.documents import Change, Document, PartName
from chatkeep.errors import StoreError, StoreFormatError

Item = dict[str, Any]
"""An item, a key, or values of an expression, as the low-level client has them: ``{"pk": {"B": b"…"}}``."""

HEAD, PART, HINT, MARK = b"H", b"P", b"I", b"W"
"""What the sort key of a head is, and those of its parts, of hints for ids, and of marks of parts begin with."""
ENTRY = b"C"
"""With a shard behind it, the partition key of catalogue entries: shorter than a session's."""
PLAIN, DEFLATED = b"\0", b"\1"
UNVERSIONED = b""
"""The version of a head that has lost its own."""
WORTHWHILE = 256
"""Fewer bytes are never deflated."""
HINT_BYTES = 8
"""How much of a message id's digest is in a hint, which may name more parts than it must."""
MARGIN = 60.0
"""Seconds by which DynamoDB is told later than needed that something may be deleted: clocks differ."""

ENTRY_SHARDS = 4
"""Over how many partitions the catalogue is spread."""
LISTING_SHARDS = 4
"""Over how many the listing of a scope is spread, unless the scope is one user's."""
SWEEP_SHARDS = 4
"""Over how many those that are due are spread, and parts that nobody has confirmed."""
EXACT = 10.0
"""Seconds within which a listing is in the order of ids."""
DUE, PENDING = b"D", b"W"

_SHORT = struct.Struct(">d")
_LONGEST_KEY = 1024


# Bytes


def packed(data: bytes) -> bytes:
    """The bytes as they are stored."""
    if len(data) >= WORTHWHILE:
        smaller = zlib.compress(data, 1)
        if len(smaller) < len(data):
            return DEFLATED + smaller
    return PLAIN + data


def unpacked(data: bytes) -> bytes:
    """What `packed` was given."""
    if data[:1] == PLAIN:
        return data[1:]
    if not data:
        raise StoreError("an item in the table is damaged: it is empty")
    if data[:1] != DEFLATED:
        raise StoreFormatError(
            f"an item is stored in form {data[:1].hex()}, which this version of chatkeep does not know: install a "
            "newer one"
        )
    try:
        return zlib.decompress(data[1:])
    except zlib.error as error:
        raise StoreError(f"an item in the table is damaged: {error}") from error


def _joined(value: Any) -> bytes:
    """A value with bytes in it: its JSON text, whose length stands before it, and the bytes behind."""
    behind = list[bytes]()

    def place(data: bytes) -> dict[str, int]:
        behind.append(data)
        return {"": len(data)}

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=place).encode("utf-8", "surrogatepass")
    return b"".join((len(text).to_bytes(4, "big"), text, *behind))


def _parted(data: bytes) -> Any:
    """What `_joined` was given."""
    end = place = 4 + int.from_bytes(data[:4], "big")

    def take(found: dict[str, Any]) -> Any:
        nonlocal place
        if len(found) != 1 or "" not in found:
            return found
        place += found[""]
        return data[place - found[""] : place]

    try:
        return json.loads(data[4:end].decode("utf-8", "surrogatepass"), object_hook=take)
    except ValueError as error:
        raise StoreError(f"an item in the table is damaged: {error}") from error


# Keys


def key(id: bytes, sort: bytes) -> Item:
    return {"pk": {"B": id}, "sk": {"B": sort}}


def part_key(id: bytes, name: PartName) -> Item:
    return key(id, PART + name)


def mark_key(id: bytes, name: PartName) -> Item:
    return key(id, MARK + name)


def hint_key(id: bytes, digest: bytes, name: PartName) -> Item:
    return key(id, HINT + digest[:HINT_BYTES] + name)


def entry_key(id: bytes, path: bytes) -> Item:
    return key(ENTRY + bytes([id[0] % ENTRY_SHARDS]), path + id)


@lru_cache(maxsize=4096)
def path_of(scope: str) -> bytes:
    """What stands for a scope in keys: eight bytes for each field. A scope below it begins with the same ones."""
    fields = [b"" if field is None else b"=" + field.encode() for field in json.loads(scope)]
    return b"".join(blake2b(field, digest_size=8).digest() for field in fields)


def depth_of(scope: str) -> int:
    """How many of its fields say which scopes are below it."""
    return max((place for place, field in enumerate(json.loads(scope), 1) if field is not None), default=0)


@lru_cache(maxsize=64)
def _nothing() -> bytes:
    return blake2b(b"", digest_size=8).digest()


def listing_shards(path: bytes) -> int:
    """Over how many partitions of the index the sessions of a scope are spread: one person's need only one."""
    return LISTING_SHARDS if path.endswith(_nothing()) else 1


def listing_key(path: bytes, shard: int) -> bytes:
    return path + bytes([shard])


def moment_key(moment: float) -> bytes:
    """A time as bytes in its order."""
    return _SHORT.pack(max(0.0, moment))


def rank(updated: float) -> float:
    """The time of a last write as far as it counts in a listing: an index entry less to write while turns come fast."""
    return updated // EXACT * EXACT


def newest_first(updated: float, session: str) -> bytes:
    """The order of a listing as bytes; of a long name the beginning alone."""
    backwards = bytes(255 - byte for byte in _SHORT.pack(max(0.0, rank(updated))))
    return (backwards + session.encode())[:_LONGEST_KEY]


def service_key(service: str) -> bytes:
    return blake2b(service.encode(), digest_size=20).digest()


def sweep_key(kind: bytes, shard: int) -> bytes:
    return kind + bytes([shard])


def expires(until: float) -> Item:
    """A time as the table's TTL has it."""
    return {"N": str(math.ceil(until + MARGIN))}


# Heads


def _at_once(document: Document) -> bytes:
    """All of a head but its version and what its logs hold."""
    rest = {name: value for name, value in document.items() if name != "version"}
    if "logs" in rest:
        rest["logs"] = [{name: value for name, value in log.items() if name != "in"} for log in rest["logs"]]
    return packed(_joined(rest))


def _entries(values: Iterable[bytes]) -> Item:
    return {"L": [{"B": packed(value)} for value in values]}


def _for_indexes(id: bytes, document: Mapping[str, Any], changed: Iterable[str]) -> dict[str, Item | None]:
    """The attributes of the indexes and the TTL that change with these fields of a head; None: it has none."""
    found = dict[str, Item | None]()
    scope, session = document["scope"], document["session"]
    for name in changed:
        if name == "updated":
            path = path_of(scope) if scope is not None and session else None
            shard = id[1] % listing_shards(path) if path else 0
            found["listing"] = {"B": listing_key(path, shard)} if path else None
            found["written"] = {"B": newest_first(document["updated"], session)} if path else None
        elif name == "service":
            known = scope is not None and session and document["service"] is not None
            found["service"] = {"B": service_key(document["service"])} if known else None
        elif name == "due":
            due = document["due"]
            found["sweep"] = None if due is None else {"B": sweep_key(DUE, id[2] % SWEEP_SHARDS)}
            found["due"] = None if due is None else {"B": moment_key(due)}
        elif name == "reap":
            found["expires"] = None if document["reap"] is None else expires(document["reap"])
    return found


_INDEXED = ("updated", "service", "due", "reap")


def head_item(id: bytes, document: Document) -> Item:
    """A head, whole."""
    item = key(id, HEAD) | {"version": {"B": document["version"]}, "head": {"B": _at_once(document)}}
    for place, log in enumerate(document.get("logs", ())):
        if log["in"]:
            item[f"in{place}"] = _entries(log["in"])
    item |= {name: value for name, value in _for_indexes(id, document, _INDEXED).items() if value is not None}
    if document["scope"] is not None:
        item["path"] = {"B": path_of(document["scope"])}
    return item


def read_head(item: Item) -> Document:
    """The head that `head_item` was given, or what became of it. Without the logs' content where that is not there.

    Of one that is damaged, or of a later version, only what a head has that is refused as such, and its path.
    """
    version = item.get("version", {}).get("B", UNVERSIONED)
    try:
        document = _parted(unpacked(item.get("head", {}).get("B", b"")))
        if not isinstance(document, dict):
            raise StoreError("an item in the table is damaged: it is no head")
        for place, log in enumerate(document.get("logs", ())):
            log["in"] = [unpacked(value["B"]) for value in item.get(f"in{place}", {"L": ()})["L"]]
    except StoreError as error:
        document = {"path": item.get("path", {}).get("B", b"")}
        if isinstance(error, StoreFormatError):
            document["form"] = "of a later packing"
        places = [int(name[2:]) for name in item if re.fullmatch(r"in[0-9]{1,5}", name)]
        # All of them are taken out with the session.
        document["logs"] = [{"in": [b""]} for _ in range(max(places, default=-1) + 1)]
    return {**document, "version": version}


def is_damaged(document: Document) -> bool:
    """Whether it is what is left of a head that is damaged."""
    return "scope" not in document and "form" not in document


def still(version: bytes) -> dict[str, Any]:
    """That a head has this version: the parameters of a condition."""
    known: Item
    if version == UNVERSIONED:
        condition, known = "NOT attribute_type(#v, :known)", {"S": "B"}
    else:
        condition, known = "#v = :known", {"B": version}
    return {
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {"#v": "version"},
        "ExpressionAttributeValues": {":known": known},
    }


class Update:
    """An update of a head that makes a change of it. No attribute is named twice, and none lies within another."""

    def __init__(self, id: bytes, change: Change) -> None:
        document = change.document
        self._sets: dict[str, Item] = {}
        self._appends: dict[str, Item] = {}
        self._removes: list[str] = []
        self._set("version", {"B": document["version"]})
        self._set("head", {"B": _at_once(document)})
        if change.sets is None:
            former = change.former or {}
            self._removes += [f"in{place}" for place, log in enumerate(former.get("logs", ())) if log["in"]]
            fields: Iterable[str] = _INDEXED
        else:
            fields = [name for name in _INDEXED if name in change.sets]
            self._logs(document, change.sets, change.pushes)
        for name, value in _for_indexes(id, document, fields).items():
            self._set(name, value)

    def _set(self, name: str, value: Item | None) -> None:
        if value is None:
            self._removes.append(name)
        else:
            self._sets[name] = value

    def _logs(self, document: Document, sets: Mapping[str, Any], pushes: Mapping[str, Sequence[Any]]) -> None:
        logs = document["logs"]
        whole = range(len(logs)) if "logs" in sets else range(len(logs) - len(pushes.get("logs", ())), len(logs))
        for place in whole:
            self._place(place, logs[place]["in"])
        for path, value in sets.items():
            if path.startswith("logs.") and path.endswith(".in"):
                self._place(int(path.split(".")[1]), value)
        for path, values in pushes.items():
            if path.startswith("logs.") and path.endswith(".in"):
                self._appends[f"in{path.split('.')[1]}"] = _entries(values)

    def _place(self, place: int, entries: Sequence[bytes]) -> None:
        self._set(f"in{place}", _entries(entries) if entries else None)

    def parameters(self, id: bytes, version: bytes) -> dict[str, Any]:
        """The arguments of `update_item`, which changes the head only if it has that version."""
        condition = still(version)
        names, values = condition["ExpressionAttributeNames"], condition["ExpressionAttributeValues"]
        changes = list[str]()
        for place, (name, value) in enumerate({**self._sets, **self._appends}.items()):
            names[f"#s{place}"], values[f":s{place}"] = name, value
            added = f"list_append(#s{place}, :s{place})" if name in self._appends else f":s{place}"
            changes.append(f"#s{place} = {added}")
        expression = "SET " + ", ".join(changes)
        if self._removes:
            names |= {f"#r{place}": name for place, name in enumerate(self._removes)}
            expression += " REMOVE " + ", ".join(f"#r{place}" for place in range(len(self._removes)))
        return {
            **condition,
            "Key": key(id, HEAD),
            "UpdateExpression": expression,
        }
