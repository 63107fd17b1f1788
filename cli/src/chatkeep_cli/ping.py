"""``chatkeep ping``: whether the database answers, and what it says of itself."""

from __future__ import annotations

from time import perf_counter

from .screen import Screen, write_json
from .store import opened
from .text import duration, in_one_line


async def ping(url: str | None, *, json: bool) -> None:
    """Connect, ask once, and print the answer with the time of both; with `json` one object."""
    store = opened(url, create=False)
    begun = perf_counter()
    async with store:
        connected = perf_counter()
        health = await store.ping()
        answered = perf_counter()
    connecting, asking = connected - begun, answered - connected
    name = store.connection.name
    if json:
        write_json(
            {"url": name, "backend": health.backend, "server": health.server, "details": dict(health.details)}
            | {"connect_ms": round(connecting * 1e3, 3), "ping_ms": round(asking * 1e3, 3)},
            default=str,
        )
        return
    screen = Screen()
    screen.put_line((in_one_line(name), "bold"), (" answers", "green"), f": {in_one_line(health.server)}")
    screen.put_line(f"connected in {duration(connecting)}, answered in {duration(asking)}")
    for key, value in health.details.items():
        screen.put_line((f"{in_one_line(key)}: ", "dim"), in_one_line(str(value)))
