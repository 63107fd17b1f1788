"""The one table: its keys, its indexes and its TTL; making it, and saying what of it is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from chatkeep.errors import StoreError

from .calls import UNMET, Calls
from .failures import BUSY, code_of
from .items import Item, key

KEYS = (("pk", "HASH"), ("sk", "RANGE"))
INDEXES = {
    # A scope's sessions, last written first.
    "chatkeep_listing": (("listing", "HASH"), ("written", "RANGE")),
    # A session by its service session id.
    "chatkeep_service": (("service", "HASH"),),
    # What a sweep looks at: sessions whose time is over, and parts that nobody has confirmed yet.
    "chatkeep_sweep": (("sweep", "HASH"), ("due", "RANGE")),
}
"""Global secondary indexes with their keys; each holds nothing but keys, all of them binary."""
TTL = "expires"
NOBODY = key(b"?", b"?")
"""The key of an item that there never is."""
UNKNOWN = "UnknownOperationException"
"""Of an emulator that has not learned an operation."""
BETWEEN_LOOKS = 0.2, 2.0
"""Seconds between two looks at a table that is being made: at first, and later on."""


def definition(table: str, *, kms_key: str | None) -> dict[str, Any]:
    """The arguments of `create_table`: paid by request, so that there is no capacity to plan."""
    names = sorted({name for keys in (KEYS, *INDEXES.values()) for name, _ in keys})
    found: dict[str, Any] = {
        "TableName": table,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "B"} for name in names],
        "KeySchema": _schema(KEYS),
        "BillingMode": "PAY_PER_REQUEST",
        "GlobalSecondaryIndexes": [
            {"IndexName": name, "KeySchema": _schema(keys), "Projection": {"ProjectionType": "KEYS_ONLY"}}
            for name, keys in INDEXES.items()
        ],
    }
    if kms_key is not None:
        found["SSESpecification"] = {"Enabled": True, "SSEType": "KMS", "KMSMasterKeyId": kms_key}
    return found


def _schema(keys: tuple[tuple[str, str], ...]) -> list[Item]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in keys]


def _schema_of(described: list[Item]) -> set[tuple[str, str]]:
    return {(each["AttributeName"], each["KeyType"]) for each in described}


async def create(calls: Calls, place: str, *, recovery: bool, kms_key: str | None) -> None:
    """Make the table if there is none, and wait until it can be used. Any number of processes may do so at once."""
    described = await _described(calls)
    if described is None:
        arguments = definition(calls.table, kms_key=kms_key)
        try:
            await calls.in_thread(lambda: calls.client.create_table(**arguments))
        except ClientError as error:
            if code_of(error) != "ResourceInUseException":  # another process was quicker
                raise
        described = await _usable(calls)
        await _set_up(calls, "update_time_to_live", TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL})
        if recovery:
            wanted = {"PointInTimeRecoveryEnabled": True}
            await _set_up(calls, "update_continuous_backups", PointInTimeRecoverySpecification=wanted)
    elif not _ready(described):
        described = await _usable(calls)
    if wrong := lacking(described):
        raise StoreError(
            f"{place}: the table is there, but not as chatkeep needs it: {'; '.join(wrong)}. Add what is missing, or "
            "name another table"
        )


async def _described(calls: Calls) -> Any:
    """What the service says of the table; None: there is none."""
    try:
        answer = await calls.in_thread(lambda: calls.client.describe_table(TableName=calls.table))
    except ClientError as error:
        if code_of(error) != "ResourceNotFoundException":
            raise
        return None
    return answer["Table"]


def _ready(described: Any) -> bool:
    indexes = described.get("GlobalSecondaryIndexes", ())
    return all(each.get("TableStatus", each.get("IndexStatus")) == "ACTIVE" for each in (described, *indexes))


async def _usable(calls: Calls) -> Any:
    """What the service says of the table once it can be used; waiting for it ends with the time for opening."""
    pause, longest = BETWEEN_LOOKS
    while True:
        described = await _described(calls)
        if described is not None and _ready(described):
            return described
        await asyncio.sleep(pause)
        pause = min(longest, pause * 1.5)


async def _set_up(calls: Calls, operation: str, **arguments: Any) -> None:
    """One setting of a table that is new. Another process may be making the same one."""
    method: Callable[..., Any] = getattr(calls.client, operation)
    for attempt in range(20):
        try:
            await calls.in_thread(lambda: method(TableName=calls.table, **arguments))
        except ClientError as error:
            code, said = code_of(error), str(error)
            if code == UNKNOWN or (code == "ValidationException" and "already" in said):
                return
            if code not in {*BUSY, "ResourceInUseException", "ContinuousBackupsUnavailableException"} or attempt == 19:
                raise
            await asyncio.sleep(min(2.0, 0.1 * 1.5**attempt))
        else:
            return


def lacking(described: Any) -> list[str]:
    """What a table lacks, in words."""
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
    found = list[str]()
    if _schema_of(described["KeySchema"]) != set(KEYS):
        found.append("its keys must be pk (HASH) and sk (RANGE)")
    there = {each["IndexName"]: each for each in described.get("GlobalSecondaryIndexes", ())}
    for name, keys in INDEXES.items():
        if name not in there:
            found.append(f"the index {name} is missing")
        elif _schema_of(there[name]["KeySchema"]) != set(keys):
            wanted = ", ".join(f"{attribute} ({kind})" for attribute, kind in keys)
            found.append(f"the index {name} must have the keys {wanted}")
    wrong = sorted(name for name, kind in kinds.items() if kind != "B" and name in _key_names())
    if wrong:
        found.append(f"the type of {', '.join(wrong)} must be B (binary)")
    return found


def _key_names() -> set[str]:
    return {name for keys in (KEYS, *INDEXES.values()) for name, _ in keys}


# What ping says


async def looked_over(calls: Calls) -> dict[str, Any]:
    """What there is to say of the table, and under ``missing`` and ``denied`` what is wrong, if anything is."""
    found: dict[str, Any] = {"table": calls.table, "region": calls.client.meta.region_name}
    missing, denied = list[str](), list[str]()
    try:
        described = await _described(calls)
    except ClientError as error:
        if not _is_denial(error):
            raise
        found["unknown"] = "keys and indexes: dynamodb:DescribeTable is not allowed"
    else:
        if described is None:
            return {**found, "missing": [f"the table {calls.table}: ?create=true makes it"]}
        missing += lacking(described)
        found["status"] = described["TableStatus"]
        found["billing"] = described.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    found["ttl"] = await _ttl(calls)
    if found["ttl"] not in (TTL, "unknown"):
        missing.append(f"the table's TTL is not on the attribute {TTL}")
    for action, probe in _probes(calls).items():
        verdict = await _tried(calls, probe)
        if verdict == "denied":
            denied.append(f"dynamodb:{action}")
        elif verdict:
            missing.append(verdict)
    return found | ({"missing": missing} if missing else {}) | ({"denied": denied} if denied else {})


async def _ttl(calls: Calls) -> str:
    """The attribute that the table's TTL is on, ``off``, or ``unknown``."""
    try:
        answer = await calls.in_thread(lambda: calls.client.describe_time_to_live(TableName=calls.table))
    except ClientError as error:
        if _is_denial(error) or code_of(error) == UNKNOWN:
            return "unknown"
        raise
    said = answer["TimeToLiveDescription"]
    return str(said["AttributeName"]) if said.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") else "off"


def _is_denial(error: ClientError) -> bool:
    return code_of(error) in ("AccessDeniedException", "AccessDenied", "NotAuthorized")


def _probes(calls: Calls) -> dict[str, Callable[[], Any]]:
    """For each action, a call that needs it and changes nothing."""
    client, table = calls.client, calls.table
    never = {"ConditionExpression": "attribute_exists(pk)"}
    one = {"TableName": table, "Key": NOBODY}
    update = {"UpdateExpression": "SET #n = :n", "ExpressionAttributeNames": {"#n": "never"}}

    def query(index: str) -> Any:
        name, value = INDEXES[index][0][0], {":n": {"B": b"?"}}
        names = {"#n": name}
        asked = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": value}
        return client.query(TableName=table, IndexName=index, KeyConditionExpression="#n = :n", **asked)

    return {
        "GetItem": lambda: client.get_item(**one),
        "BatchGetItem": lambda: client.batch_get_item(RequestItems={table: {"Keys": [NOBODY]}}),
        "Query": lambda: client.query(
            TableName=table, KeyConditionExpression="pk = :n", ExpressionAttributeValues={":n": {"B": b"?"}}
        ),
        **{f"Query on {index}": lambda index=index: query(index) for index in INDEXES},  # type: ignore[misc]
        "PutItem": lambda: client.put_item(TableName=table, Item=NOBODY, **never),
        "UpdateItem": lambda: client.update_item(
            **one, **update, **never, ExpressionAttributeValues={":n": {"N": "0"}}
        ),
        "DeleteItem": lambda: client.delete_item(**one, **never),
        "BatchWriteItem": lambda: client.batch_write_item(RequestItems={table: [{"DeleteRequest": {"Key": NOBODY}}]}),
    }


async def _tried(calls: Calls, probe: Callable[[], Any]) -> str:
    """``denied``, what else is wrong, or nothing."""
    try:
        await calls.in_thread(probe)
    except ClientError as error:
        if _is_denial(error):
            return "denied"
        code = code_of(error)
        if code in ("ValidationException", "ResourceNotFoundException"):
            return "" if "index" in str(error) else " ".join(str(error).split())
        if code != UNMET:
            raise
    return ""
