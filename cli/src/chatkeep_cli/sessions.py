"""``chatkeep sessions``: the sessions of a scope, last written first."""

from __future__ import annotations

from typing import Any

from chatkeep import SessionInfo

from .failures import say
from .screen import Screen, when, write_json
from .store import Address, described, opened
from .text import counted, in_one_line, quoted, shortened

TABLE_LIMIT = 100
"""How many sessions a table holds where no limit is given."""
_TITLE = 60


async def list_sessions(url: str | None, *, address: Address, below: bool, limit: int | None, json: bool) -> None:
    """Print a table; with `json` one object a line, all of them unless there is a limit."""
    wanted = limit if limit is not None or json else TABLE_LIMIT
    rows: list[SessionInfo] = []
    listed = 0
    more = False
    store = opened(url, create=False)
    view = address.of(store)
    async with store:
        async for info in view.iter_sessions(below=below):
            more = listed == wanted
            if more:
                break
            listed += 1
            if json:
                write_json(_plain(info), default=str)
            else:
                rows.append(info)
    if rows:
        _print(rows, below=below)
    elif not json:
        scope = described(view.scope)
        mend = "" if below else "; --below also looks into the scopes below"
        Screen().put_line(f"no sessions in {in_one_line(store.connection.name)}{f' at {scope}' if scope else ''}{mend}")
    if more:
        say(f"there are more than these {counted(listed, 'session')}: --limit says how many to list")


def _print(found: list[SessionInfo], *, below: bool) -> None:
    scopes = below and any(info.scope.depth for info in found)
    expires = any(info.expires_at for info in found)
    titles = any(info.title for info in found)
    columns: list[str | tuple[str, str]] = ["SESSION", ("MESSAGES", "right"), "LAST WRITE (UTC)"]
    columns += ["EXPIRES (UTC)"] * expires + ["SCOPE"] * scopes + ["TITLE"] * titles
    rows = []
    for info in found:
        row = [quoted(info.id), f"{info.messages:,}", when(info.updated_at)]
        row += [when(info.expires_at) if info.expires_at else "never"] * expires
        row += [described(info.scope)] * scopes + [shortened(info.title or "", _TITLE)] * titles
        rows.append([in_one_line(cell) for cell in row])
    Screen().table(columns, rows)


def _plain(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "scope": info.scope._asdict(),
        "messages": info.messages,
        "logs": {name: log.size for name, log in info.logs.items() if name},
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
        "expires_at": info.expires_at.isoformat() if info.expires_at else None,
        "title": info.title,
        "metadata": info.metadata,
        "service_session_id": info.service_session_id,
    }
