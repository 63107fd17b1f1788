"""Mistakes against clauses 15 to 19: values that come back as others, walls, and one damaged record that harms all."""

from __future__ import annotations

import json
import math
import pickle
import pydoc
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chatkeep import CorruptRecordError, MessageTooLargeError, SerializationError, integrity
from chatkeep.codecs import ChatMessageCodec, Encoded
from chatkeep.envelope import ENVELOPE, READERS
from chatkeep.integrity import QUARANTINE, Finding
from chatkeep.log import Log as StoreLog
from chatkeep.memory import MemoryBackend
from chatkeep.reading import History, LogReader
from chatkeep.records import Key, Outcome, Record, Rewrite, Span, Write
from chatkeep.serializer import SessionSerializer
from chatkeep.state import State

from . import mutant, swapped

dumps = SessionSerializer.dumps
loads = SessionSerializer.loads
open_envelope = SessionSerializer._open
records_of = StoreLog._records
encode = ChatMessageCodec.encode
one_by_one = LogReader._one_by_one


def parsed(**options: Any) -> Callable[..., Any]:
    """A parser of JSON that takes some of it for something else."""

    def parse(data: bytes, **_: Any) -> Any:
        return json.loads(data, **options)

    return parse


def without_nan(value: Any) -> Any:
    """The value with None in the place of NaN and infinities."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# 15: payloads come back equal

swapped(
    "LargeIntegersAreDoubles",
    15,
    mistake="integers pass through a double",
    place="chatkeep.serializer.from_json",
    value=parsed(parse_int=lambda text: int(float(text)) if len(text) < 300 else int(text)),
)
swapped(
    "FifteenDigits",
    15,
    mistake="floats have 15 digits",
    place="chatkeep.serializer.from_json",
    value=parsed(parse_float=lambda text: float(f"{float(text):.15g}")),
)
swapped(
    "WholeFloatsAreIntegers",
    15,
    mistake="a float without a fraction comes back as an integer",
    place="chatkeep.serializer.from_json",
    value=parsed(parse_float=lambda text: int(float(text)) if float(text).is_integer() else float(text)),
)
swapped(
    "NoDotsInKeys",
    15,
    mistake="keys with dots and dollar signs are changed, as a document database wants it",
    place="chatkeep.serializer.from_json",
    value=parsed(
        object_hook=lambda members: {key.replace(".", "_").replace("$s", "_s"): item for key, item in members.items()}
    ),
)
swapped(
    "TupleIsAList",
    15,
    mistake="a tuple comes back as a list",
    place="chatkeep.serializer.READERS",
    value={**READERS, "tuple": list},
)
swapped(
    "BytesAreText",
    15,
    mistake="bytes come back as the text that they were stored as",
    place="chatkeep.serializer.READERS",
    value={**READERS, "bytes": str},
)
swapped(
    "TimeWithoutAZone",
    15,
    mistake="times come back without their zone",
    place="chatkeep.serializer.READERS",
    value={**READERS, "datetime": lambda content: READERS["datetime"](content).replace(tzinfo=None)},
)
swapped(
    "DecimalIsAFloat",
    15,
    mistake="decimals come back as floats",
    place="chatkeep.serializer.READERS",
    value={**READERS, "decimal": float},
)
swapped(
    "UuidIsAText",
    15,
    mistake="UUIDs come back as texts",
    place="chatkeep.serializer.READERS",
    value={**READERS, "uuid": str},
)


@mutant(15, mistake="NUL is left out of texts, as one database wants it", place="chatkeep.serializer.from_json")
def without_nul(data: bytes, **_: Any) -> Any:
    return json.loads(data.replace(b"\\u0000", b""))


@mutant(15, mistake="texts are normalised", place="chatkeep.serializer.from_json")
def normalised(data: bytes, **_: Any) -> Any:
    return json.loads(unicodedata.normalize("NFC", data.decode()))


@mutant(15, mistake="lone surrogates are replaced", place="chatkeep.serializer.SessionSerializer.dumps")
def surrogates_are_replaced(self: SessionSerializer, value: Any, *, path: str = "$") -> bytes:
    data = dumps(self, value, path=path)
    return data.replace(b"\\ud800", b"?").replace(b"\\udfff", b"?")


@mutant(
    15,
    mistake="a user's data that looks like the envelope is stored as it is",
    place="chatkeep.serializer.SessionSerializer.dumps",
)
def nothing_is_escaped(self: SessionSerializer, value: Any, *, path: str = "$") -> bytes:
    try:
        text = json.dumps(value, allow_nan=False)
        if ENVELOPE in text and json.loads(text) == value:
            return text.encode()
    except (TypeError, ValueError, RecursionError):
        pass
    return dumps(self, value, path=path)


@mutant(15, mistake="a message keeps the members that the store knows", place="chatkeep.codecs.ChatMessageCodec.encode")
def known_members_alone(self: ChatMessageCodec, message: Any) -> Encoded:
    encoded = encode(self, message)
    known = ("role", "content", "id", "name", "tool_calls", "tool_call_id", "metadata")
    return encoded._replace(data={name: item for name, item in encoded.data.items() if name in known})


@mutant(15, mistake="of a message its role and its text are stored", place="chatkeep.codecs.ChatMessageCodec.encode")
def role_and_text_alone(self: ChatMessageCodec, message: Any) -> Encoded:
    encoded = encode(self, message)
    return encoded._replace(data={name: item for name, item in encoded.data.items() if name in ("role", "content")})


# 16: what cannot be represented


@mutant(16, mistake="NaN becomes null", place="chatkeep.serializer.SessionSerializer.dumps")
def nan_is_null(self: SessionSerializer, value: Any, *, path: str = "$") -> bytes:
    try:
        return dumps(self, value, path=path)
    except SerializationError:
        return dumps(self, without_nan(value), path=path)


@mutant(
    16, mistake="what JSON has no word for is stored as its text", place="chatkeep.serializer.SessionSerializer.dumps"
)
def stored_as_text(self: SessionSerializer, value: Any, *, path: str = "$") -> bytes:
    try:
        return dumps(self, value, path=path)
    except SerializationError:
        try:
            return json.dumps(value, default=str, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            return dumps(self, value, path=path)


@mutant(16, mistake="keys become texts", place="chatkeep.serializer._text_key")
def keys_become_texts(key: Any, path: Any) -> str:
    return str(key)


@mutant(16, mistake="an error says what is wrong and not where", place="chatkeep.serializer.SessionSerializer.dumps")
def error_without_a_path(self: SessionSerializer, value: Any, *, path: str = "$") -> bytes:
    try:
        return dumps(self, value)
    except SerializationError as error:
        raise SerializationError(str(error).rpartition(": ")[2], path="$") from error


@mutant(
    16,
    20,
    mistake="several state keys are written one by one, up to the one that is refused",
    place="chatkeep.state.State.update",
)
async def keys_one_by_one(self: State, values: dict[str, Any]) -> None:
    for key, value in values.items():
        await self.set(key, value)


@mutant(
    16,
    mistake="a value that does not fit its announced type is stored all the same",
    place="chatkeep.serializer.SessionSerializer.dump_as",
)
def stored_whatever_its_type(self: SessionSerializer, type: Any, value: Any) -> Any:
    return value if isinstance(value, dict) else value.model_dump(mode="json")


# 17: sizes


@mutant(17, mistake="an item has 400 KB at most, and the message does not fit")
class WallOf400Kb(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if any(len(record.payload) > 400_000 for record in write.append):
            raise MessageTooLargeError("an item is larger than 400 KB")
        return await super().commit(key, write)


@mutant(17, mistake="a transaction has a hundred items at most, and the rest of the batch is left out")
class HundredItems(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        return await super().commit(key, write._replace(append=write.append[:100]))


@mutant(17, mistake="a log ends at 5,000 messages, and older ones go without being asked for")
class LogOf5000(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if write.append:
            write = write._replace(keep=write.keep._replace(max_messages=write.keep.max_messages or 5000))
        return await super().commit(key, write)


@mutant(17, mistake="a message's size is its characters and not its bytes", place="chatkeep.log.Log._records")
def characters_are_counted(self: Any, messages: Iterable[Any]) -> list[Record]:
    messages, options = list(messages), self._store.options
    few = all(len(message.text) < options.max_message_bytes for message in messages)
    self._store.options = options.model_copy(update={"max_message_bytes": 10**9}) if few else options
    try:
        return records_of(self, messages)
    finally:
        self._store.options = options


@mutant(17, mistake="each message is measured, and their sum is not", place="chatkeep.log.Log._records")
def the_sum_is_not_measured(self: Any, messages: Iterable[Any]) -> list[Record]:
    options = self._store.options
    self._store.options = options.model_copy(update={"max_batch_bytes": 10**9})
    try:
        return records_of(self, messages)
    finally:
        self._store.options = options


@mutant(17, mistake="messages are measured, and state values are not", place="chatkeep.store.Store.check_size")
def state_is_not_measured(self: Any, what: str, size: int) -> None:
    return None


# 18: damage


@mutant(
    18, mistake="one damaged record and the whole page cannot be read", place="chatkeep.reading.LogReader._one_by_one"
)
def page_or_nothing(self: LogReader[Any], records: Sequence[Record]) -> Any:
    messages, seqs, skipped = one_by_one(self, records)
    return ([], [], len(records)) if skipped else (messages, seqs, skipped)


@mutant(18, mistake="damaged records are skipped without a word", place="chatkeep.reading.LogReader._one_by_one")
def skipped_in_silence(self: LogReader[Any], records: Sequence[Record]) -> Any:
    messages, seqs, _ = one_by_one(self, records)
    return messages, seqs, 0


@mutant(
    18,
    mistake="a page with damaged records is shorter, and its newest n are fewer",
    place="chatkeep.reading.LogReader._read",
)
async def shorter_pages(self: LogReader[Any], span: Span, life: str | None) -> History[Any]:
    page, messages, seqs, skipped = await self._page(span)
    self._check_life(life, page.head)
    return History(messages, seqs, page, self._name, skipped)


@mutant(
    18,
    mistake="damaged records are passed over, whatever on_corrupt says",
    place="chatkeep.reading.LogReader._one_by_one",
)
def damage_is_passed_over(self: LogReader[Any], records: Sequence[Record]) -> Any:
    found, seqs = list[Any](), list[int]()
    for record in records:
        try:
            found.append(self.decode(record))
            seqs.append(record.seq)
        except CorruptRecordError:
            continue
    return found, seqs, 0


@mutant(18, mistake="an error does not say which message is damaged", place="chatkeep.reading.LogReader._corrupt")
def damage_without_a_place(self: LogReader[Any], record: Record, error: Exception) -> CorruptRecordError:
    return CorruptRecordError(f"a message cannot be read: {error}")


@mutant(18, mistake="verify looks at single records, and not whether calls have results", place="chatkeep.log.verify")
async def calls_are_not_looked_at(log: Any) -> Any:
    findings, records, life = await integrity.verify(log)
    return [finding for finding in findings if finding.kind in ("damaged", "unknown format")], records, life


@mutant(18, mistake="repair deletes what it finds", place="chatkeep.log.repair")
async def repair_deletes(log: Any) -> list[Finding]:
    findings, records, life = await integrity.verify(log)
    for seq, record in records.items():
        gone = record._replace(format=QUARANTINE, payload=b"null", text=None, starts_turn=False)
        await log.commit(Write(b"%d gone" % seq, rewrite=Rewrite(gone), life=life))
    return findings


@mutant(
    18,
    mistake="repair mends what verify finds damaged, and leaves calls without results",
    place="chatkeep.integrity.verify",
)
async def repairs_damage_alone(log: Any, verify: Any = integrity.verify) -> Any:
    findings, records, life = await verify(log)
    damaged = {finding.seq for finding in findings if finding.kind in ("damaged", "unknown format")}
    return findings, {seq: record for seq, record in records.items() if seq in damaged}, life


@mutant(18, mistake="one damaged value and the keys cannot be listed", place="chatkeep.state.State.keys")
async def keys_by_their_values(self: State, prefix: str = "") -> list[str]:
    return list(await self.items(prefix))


# 19: the stored form

swapped(
    "NewerIsReadAsOurs",
    19,
    mistake="a newer format is read as if it were ours",
    place="chatkeep.codecs.ChatMessageCodec.accepts",
    value=frozenset({"chat/1", "openai/1", "chat/2"}),
)
swapped(
    "OlderIsNotRead",
    19,
    mistake="a new version of the form reads no older one",
    place="chatkeep.serializer.FORMAT_TAG",
    value="json/2",
)
swapped(
    "RefusedWithoutAWord",
    19,
    mistake="what a newer version wrote is called damaged, without a word of the version",
    place="chatkeep.reading.refusal",
    value=lambda codec, form: "is damaged",
)


@mutant(
    19,
    mistake="the version of a value's form is not looked at",
    place="chatkeep.serializer.SessionSerializer.loads_typed",
)
def form_is_not_looked_at(self: SessionSerializer, tag: str, data: bytes) -> Any:
    return self.loads(data)


@mutant(19, mistake="values of state are stored without a version", place="chatkeep.factory.SessionSerializer")
class WithoutAVersion(SessionSerializer):
    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        return "json", self.dumps(value)

    def loads_typed(self, tag: str, data: bytes) -> Any:
        return self.loads(data) if tag == "json" else super().loads_typed(tag, data)


@mutant(19, mistake="what an early release pickled is still read", place="chatkeep.serializer.SessionSerializer.loads")
def pickles_are_read(self: SessionSerializer, data: bytes) -> Any:
    return pickle.loads(data) if data[:1] == b"\x80" else loads(self, data)


@mutant(
    19,
    mistake="a type that is not registered is imported by its name",
    place="chatkeep.serializer.SessionSerializer._open",
)
def types_are_imported(self: SessionSerializer, envelope: dict[str, Any]) -> Any:
    tag = envelope[ENVELOPE]
    if isinstance(tag, str) and tag.startswith("type:") and (found := pydoc.locate(tag.removeprefix("type:"))):
        return found(envelope["v"])  # type: ignore[operator]
    return open_envelope(self, envelope)
