"""The store and the session that a command line means."""

from __future__ import annotations

from typing import Any, NamedTuple

from chatkeep import OpenAIChatCodec, Scope, ScopedStore, SessionInfo, Store, open_store
from chatkeep.factory import store_url
from chatkeep.log import Log
from chatkeep.plugins import spec_for

from .failures import Code, CommandError
from .text import quoted

Message = dict[str, Any]


class Address(NamedTuple):
    """The scope options of a command."""

    app: str | None = None
    tenant: str | None = None
    user: str | None = None

    def of(self, store: Store[Message]) -> ScopedStore[Message]:
        """The view of this scope; the store itself if no option was given."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        return store.scoped(**given) if given else store


class Place(NamedTuple):
    """One log of one session, as a command line names it."""

    url: str | None
    session: str
    address: Address
    log: str | None = None

    def messages(self, store: Store[Message]) -> Log[Message]:
        session = self.address.of(store).session(self.session)
        return session if self.log is None else session.log(self.log)


def place(url: str | None, session: str | None, address: Address, log: str | None, *, command: str) -> Place:
    """The place that ``[URL] SESSION`` names: of one argument alone it is the session, in the default store."""
    if session is None:
        url, session = None, url
    if session is None or (url is None and "://" in session):
        raise CommandError(
            f"which session? `chatkeep {command} URL SESSION`; `chatkeep sessions URL --below` lists them", Code.USAGE
        )
    return Place(url, session, address, log)


def opened(url: str | None, *, create: bool = True) -> Store[Message]:
    """The store of a URL, whose messages are OpenAI's dicts. What cannot be read as one comes as its record.

    Without `create` a database that is not there is not made, where the backend has that option and the URL does not
    say otherwise.
    """
    options: dict[str, Any] = {} if create or not _may_create(url) else {"create": False}
    return open_store(url, codec=OpenAIChatCodec(), on_corrupt="raw", **options)


def _may_create(url: str | None) -> bool:
    parsed = store_url(url)
    said = any(name == "create" for name, _ in parsed.query)
    return not said and "create" in spec_for(parsed.scheme).options.model_fields


def described(scope: Scope) -> str:
    """A scope as the options that address it: ``--tenant acme --user alice``."""
    return " ".join(f"--{name} {quoted(value)}" for name, value in scope._asdict().items() if value is not None)


def missing(place: Place, store: Store[Message], info: SessionInfo | None) -> CommandError:
    """What to say where a session, or a log of it, is not there."""
    scope = described(place.address.of(store).scope)
    where = f"in {store.connection.name}" + (f" at {scope}" if scope else "")
    if info is None:
        mend = "`chatkeep sessions URL --below` lists those of every scope"
        return CommandError(f"there is no session {quoted(place.session)} {where}; {mend}", Code.NOT_FOUND)
    logs = ", ".join(quoted(name) for name in sorted(info.logs) if name) or "none"
    text = f"session {quoted(place.session)} {where} has no log {quoted(place.log or '')}; its further logs: {logs}"
    return CommandError(text, Code.NOT_FOUND)
