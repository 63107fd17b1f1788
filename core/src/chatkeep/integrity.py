"""What can be wrong with a stored conversation, and how it is mended without deleting anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .errors import CorruptRecordError
from .records import ABSENT, LOST, Record, Rewrite, Span, Write

if TYPE_CHECKING:
    from .log import Log

QUARANTINE = "quarantine/1"
"""The format of a record that was taken out of the conversation. Its payload holds what was there before."""
PAGE = 500

Kind = Literal["damaged", "unknown format", "call without result", "result without call"]


class Finding(NamedTuple):
    """One thing that is wrong."""

    seq: int
    kind: Kind
    detail: str


async def verify(log: Log[Any]) -> tuple[list[Finding], dict[int, Record], str]:
    """What is wrong with a log, in order of seq; the records that it is wrong with; and the life it was read in."""
    findings: list[Finding] = []
    records: dict[int, Record] = {}
    calls: dict[str, Record] = {}  # unanswered ones
    answers: dict[int, list[Record]] = {}  # by the seq of the call
    callers: dict[str, Record] = {}
    place, life = 0, ABSENT
    while True:
        page = await log.records(Span(after=place, limit=PAGE))
        if page.head is not None:
            life = page.head.life
        for record in page.records:
            if record.format == QUARANTINE:
                continue
            try:
                made, answered = log.codec.links(log.decode(record))
            except CorruptRecordError as error:
                kind: Kind = "damaged" if record.format in {*log.codec.accepts, LOST} else "unknown format"
                findings.append(Finding(record.seq, kind, str(error.__cause__)))
                records[record.seq] = record
                continue
            for call in made:
                calls[call] = callers[call] = record
            for call in answered:
                calls.pop(call, None)
                if call in callers:
                    answers.setdefault(callers[call].seq, []).append(record)
                else:
                    findings.append(Finding(record.seq, "result without call", f"nothing called {call!r} before"))
                    records[record.seq] = record
        if not page.more:
            break
        place = page.records[-1].seq
    for call, record in calls.items():
        findings.append(Finding(record.seq, "call without result", f"the call {call!r} was never answered"))
        records[record.seq] = record
        for answer in answers.get(record.seq, ()):  # the other results of a message that has to go
            if answer.seq not in records:
                findings.append(Finding(answer.seq, "result without call", f"its call stands beside {call!r}"))
                records[answer.seq] = answer
    return sorted(findings), records, life


async def repair(log: Log[Any]) -> list[Finding]:
    """Quarantine what `verify` finds; what that was. A `ConflictError` if a record is changed meanwhile."""
    findings, records, life = await verify(log)
    for seq, record in records.items():
        reasons = "; ".join(f"{finding.kind}: {finding.detail}" for finding in findings if finding.seq == seq)
        payload = log.serializer.dumps({"format": record.format, "payload": record.payload, "reason": reasons})
        quarantined = record._replace(format=QUARANTINE, payload=payload, text=None, starts_turn=False)
        await log.commit(Write(os.urandom(16), rewrite=Rewrite(quarantined, record.payload), life=life))
    return findings
