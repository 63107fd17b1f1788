"""The URL that picks a store, and the only place that knows what in it is secret.

::

    scheme://authority/path?key=value&key=value
    redis://user:password@host:6379/0?ttl=30d&max_messages=200

The authority stays opaque: whether it is one host, several, or a region is the driver's business. A character that
would make it uncertain where a password ends is refused, never guessed at: an unencoded ``#``, or an unencoded ``@``
after the first ``/`` or ``?`` behind an authority. Percent-encoding says what is meant.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from .errors import ConfigError, InvalidURLError

HIDDEN = "***"
"""What is shown in the place of a secret."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EMBEDDED_PASSWORD = re.compile(r"://[^/:@]*:(?P<password>.+)@", re.DOTALL)
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_DATABASE_FILE = re.compile(r"[^@?]*\.(db|db3|sqlite|sqlite3)", re.IGNORECASE)
_SQLITE_SLASHES = re.compile(r"sqlite(?::/?|/{2,3})(?P<path>[^/@?:][^@?:]*)(\?.*)?", re.IGNORECASE)
"""A URL of a file with too few slashes or without its colon."""
_SECRET_WORDS = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "signature",
    "authmechanismproperties",
)
_SHORT = 4
"""A secret with fewer characters is scrubbed only where it stands alone: ``ab`` must not eat into ``database``."""
_EXAMPLES = "such as sqlite:///chat.db or memory://"
_ENCODE = "urllib.parse.quote(password, safe='') encodes a password"


def is_secret(key: str) -> bool:
    """Whether the value of a query key or option of this name must never be shown."""
    plain = re.sub(r"[^a-z0-9]", "", key.lower())
    return plain == "auth" or any(word in plain for word in _SECRET_WORDS)


@dataclass(frozen=True, slots=True, repr=False)
class StoreURL:
    """A connection URL in parts. ``str()`` and ``repr()`` show it without its secrets."""

    scheme: str
    """In lower case."""
    authority: str
    """What stands between ``://`` and the next ``/`` or ``?``, untouched. It may hold a password."""
    path: str
    """What follows up to the ``?``, still percent-encoded: empty, or beginning with ``/``."""
    query: tuple[tuple[str, str], ...]
    """Keys and values in order, decoded; ``+`` is a space. Values may be secret."""
    text: str
    """The URL as it was given, secrets included. Never show it."""

    @classmethod
    def parse(cls, text: str) -> StoreURL:
        """The parts of `text`; an `InvalidURLError` with the mend if it is no URL. No error shows a secret."""
        if not isinstance(text, str):
            raise InvalidURLError(_not_text(text))
        if not text.strip():
            raise InvalidURLError(f"the connection URL is empty: write scheme://…, {_EXAMPLES}")
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise InvalidURLError(_no_scheme(text))
        if text != text.strip():
            raise InvalidURLError("the connection URL begins or ends with white space: remove it")
        if not _SCHEME.fullmatch(scheme):
            raise InvalidURLError(
                "what stands before '://' in the connection URL is no scheme (a letter, then letters, digits, '+', "
                f"'.' or '-'): write scheme://…, {_EXAMPLES}"
            )
        scheme = scheme.lower()
        if character := _CONTROL.search(rest):
            raise InvalidURLError(
                f"the {scheme}:// URL has the control character {character[0]!r} in it: "
                f"remove it, or write %{ord(character[0]):02X} if it is meant"
            )
        if not _is_utf8(rest):
            raise InvalidURLError(f"the {scheme}:// URL cannot be encoded as UTF-8: percent-encode its bytes")
        if "#" in rest:
            raise InvalidURLError(
                f"the {scheme}:// URL has a '#' in it, and the URL of a store has no fragment: write %23 if it belongs "
                f"to a password or a path ({_ENCODE})"
            )
        location, _, query_text = rest.partition("?")
        authority, slash, path = location.partition("/")
        if authority and "@" in slash + path + query_text:
            raise InvalidURLError(
                f"the {scheme}:// URL has an '@' after a '/' or '?', so that it is uncertain where its password ends. "
                f"In a user name or password write %2F for '/', %3F for '?', %40 for '@' ({_ENCODE}); in a path or an "
                "option write %40 for '@'"
            )
        path = slash + path
        if _decode(path) is None or "\0" in unquote(path):
            raise InvalidURLError(f"the path of the {scheme}:// URL, percent-decoded, is not UTF-8 text without NUL")
        return cls(scheme, authority, path, tuple(_pairs(scheme, query_text)), text)

    @property
    def decoded_path(self) -> str:
        """The path with its percent-encoding undone: ``/my chat.db`` for ``/my%20chat.db``."""
        return unquote(self.path)

    def options(self, *, only: Collection[str] | None = None) -> dict[str, str]:
        """The query as a dictionary, of the keys in `only` where given. A key given twice is a `ConfigError`."""
        found: dict[str, str] = {}
        for key, value in self.query:
            if only is not None and key not in only:
                continue
            if key in found:
                raise ConfigError(f"the option {key!r} is given twice in the {self.scheme}:// URL: give it once")
            found[key] = value
        return found

    def without(self, keys: Collection[str]) -> str:
        """The URL to hand to a driver, secrets included: `text` without the query entries of these keys.

        Everything else is as it was given, byte for byte, except that the scheme is in lower case (a scheme is the
        same in either, and drivers compare it literally). A query that held nothing else goes with its ``?``.
        """
        location, mark, query_text = self._rest.partition("?")
        entries = query_text.split("&")
        kept = [entry for entry in entries if unquote_plus(entry.partition("=")[0]) not in keys]
        if len(kept) < len(entries):
            query_text = "&".join(kept)
            mark = "?" if any(kept) else ""
        return f"{self.scheme}://{location}{mark}{query_text if mark else ''}"

    def scrub(self, text: str) -> str:
        """`text` with every secret of this URL replaced by ``***``, in whatever form it stands there.

        Forms: as in the URL, percent-decoded, percent-encoded anew, and as ``repr`` or JSON would escape it. A secret
        of fewer than four characters goes only where it stands alone, not inside a word. A password that is an
        everyday word takes that word out of the text: rather that than show it.
        """
        forms = {form for secret in self._secrets() for form in _forms(secret)}
        if not forms:
            return text
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        return re.sub("|".join(_pattern(form) for form in ordered), HIDDEN, text)

    def __str__(self) -> str:
        location, mark, query_text = self._rest.partition("?")
        path = location[len(self.authority) :]
        query = "&".join(_redacted_entry(entry) for entry in query_text.split("&"))
        return f"{self.scheme}://{_redacted_authority(self.authority)}{path}{mark}{query}"

    def __repr__(self) -> str:
        return f"StoreURL({str(self)!r})"

    @property
    def _rest(self) -> str:
        return self.text.partition("://")[2]

    def _secrets(self) -> Iterator[str]:
        """Every secret as it stands in the URL. Some may be empty."""
        yield from _authority_secrets(self.authority)
        for entry in self._rest.partition("?")[2].split("&"):
            raw_key, _, raw_value = entry.partition("=")
            key, value = unquote_plus(raw_key), unquote_plus(raw_value)
            if is_secret(key):
                yield raw_value
                # authMechanismProperties=AWS_SESSION_TOKEN:…,SERVICE_NAME:…
                for part in value.split(","):
                    name, _, content = part.partition(":")
                    if is_secret(name):
                        yield content
            if embedded := _EMBEDDED_PASSWORD.search(value):
                yield embedded["password"]


def _pairs(scheme: str, query_text: str) -> Iterator[tuple[str, str]]:
    for entry in query_text.split("&"):
        if not entry:
            continue
        raw_key, _, raw_value = entry.partition("=")
        key, value = _decode(raw_key.replace("+", " ")), _decode(raw_value.replace("+", " "))
        if key is None or value is None:
            where = "an option's name" if key is None else f"the option {key!r}"
            raise InvalidURLError(f"{where} in the {scheme}:// URL, percent-decoded, is not UTF-8 text")
        yield key, value


def _decode(text: str) -> str | None:
    """`text` with its percent-encoding undone, or None if that is not UTF-8.

    No exception leaves from here: a UnicodeDecodeError carries the text, which may be secret.
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_text(value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, os.PathLike):
        return f"the connection URL must be a str, not a {kind}: {_as_sqlite(os.fsdecode(value))}"
    return f"the connection URL must be a str such as 'sqlite:///chat.db', not {kind}"


def _no_scheme(text: str) -> str:
    # Only what is plainly a database file is shown: anything else may be a password.
    slashes = _SQLITE_SLASHES.fullmatch(text)
    if slashes and not _CONTROL.search(text):
        path = slashes["path"] if _DATABASE_FILE.fullmatch(slashes["path"]) else "chat.db"
        return (
            f"a sqlite URL has three slashes before a path from here, {_as_sqlite(path).removeprefix('write ')}, "
            f"and four before an absolute one, {_as_sqlite('/' + path).removeprefix('write ')}"
        )
    if _DATABASE_FILE.fullmatch(text) and not _CONTROL.search(text):
        return f"{text} is a path: {_as_sqlite(text)}"
    return (
        f"the connection URL has no '://' in it: write scheme://…, {_EXAMPLES} "
        "(a path is written sqlite:///relative.db or sqlite:////absolute.db)"
    )


def _as_sqlite(path: str) -> str:
    return f"write sqlite:///{quote(path, safe='/:~' + chr(92), errors='surrogateescape')}"


def _authority_secrets(authority: str) -> Iterator[str]:
    userinfo, _, hosts = authority.rpartition("@")
    yield userinfo.partition(":")[2]
    # u:p@h1,u:p@h2 is no URL by the book, but its passwords are passwords.
    for part in authority.split(","):
        password = part.rpartition("@")[0].partition(":")[2]
        if len(password) >= _SHORT:
            yield password
    for host in hosts.split(","):
        yield _misplaced(host)[1]


def _redacted_authority(authority: str) -> str:
    userinfo, at, hosts = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    shown = (f"{name}:{HIDDEN}" if secret else host for host in hosts.split(",") for name, secret in [_misplaced(host)])
    return f"{user}{colon}{HIDDEN if password else ''}{at}{','.join(shown)}"


def _misplaced(host: str) -> tuple[str, str]:
    """A host without its port, and what stands in the port's place if that is no port.

    In ``redis://user:password``, where the host was forgotten, that is the password.
    """
    brackets = host.find("]") + 1 if host.startswith("[") else 0
    before, _, port = host[brackets:].partition(":")
    return host[:brackets] + before, "" if port.isascii() and port.isdigit() else port


def _redacted_entry(entry: str) -> str:
    raw_key, equals, raw_value = entry.partition("=")
    if raw_value and (is_secret(unquote_plus(raw_key)) or _EMBEDDED_PASSWORD.search(unquote_plus(raw_value))):
        return f"{raw_key}{equals}{HIDDEN}"
    return entry


def _forms(secret: str) -> Iterable[str]:
    """The spellings under which a secret may turn up in somebody's message."""
    forms = {secret}
    for plain in {secret, unquote(secret), unquote_plus(secret)}:
        forms |= {quote(plain, safe=""), quote(plain), quote_plus(plain)}
        forms |= {plain, repr(plain)[1:-1], ascii(plain)[1:-1], repr(plain.encode())[2:-1], json.dumps(plain)[1:-1]}
        # Inside a text that has both kinds of quotes, repr escapes the single ones.
        both_quotes = "'\""
        forms.add(repr(both_quotes + plain)[len(repr(both_quotes)) - 1 : -1])
    return forms - {""}


def _pattern(form: str) -> str:
    pattern = _PERCENT.sub(lambda match: f"(?i:{match[0]})", re.escape(form))
    return pattern if len(form) >= _SHORT else rf"(?<!\w){pattern}(?!\w)"
