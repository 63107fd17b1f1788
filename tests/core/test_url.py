"""Connection URLs: their parts, what a driver gets to see of them, and that nobody sees their secrets."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from chatkeep.errors import ConfigError, InvalidURLError
from chatkeep.url import StoreURL, is_secret


@pytest.mark.parametrize(
    ("text", "scheme", "authority", "path"),
    [
        ("memory://", "memory", "", ""),
        ("memory://name", "memory", "name", ""),
        ("sqlite://", "sqlite", "", ""),
        ("sqlite:///rel.db", "sqlite", "", "/rel.db"),
        ("sqlite:////abs.db", "sqlite", "", "//abs.db"),
        ("sqlite:///a@b:c.db", "sqlite", "", "/a@b:c.db"),
        ("redis://host/0", "redis", "host", "/0"),
        ("REDIS://Host:6379", "redis", "Host:6379", ""),
        ("rediss://u:p%40x@host:6380/1", "rediss", "u:p%40x@host:6380", "/1"),
        ("redis://:pw@[::1]:6379/0", "redis", ":pw@[::1]:6379", "/0"),
        ("unix:///run/redis.sock", "unix", "", "/run/redis.sock"),
        ("unix://u:pw@/run/redis.sock", "unix", "u:pw@", "/run/redis.sock"),
        ("redis+sentinel://h1:26379,h2,h3/master/0", "redis+sentinel", "h1:26379,h2,h3", "/master/0"),
        ("redis+cluster://h1:1,h2:2", "redis+cluster", "h1:1,h2:2", ""),
        ("valkey://host", "valkey", "host", ""),
        ("valkeys://host", "valkeys", "host", ""),
        ("mongodb://u:p%40x@h1:27017,h2:27018/Chats", "mongodb", "u:p%40x@h1:27017,h2:27018", "/Chats"),
        ("mongodb+srv://cluster.example.org/chats", "mongodb+srv", "cluster.example.org", "/chats"),
        ("dynamodb://eu-north-1/ChatTable", "dynamodb", "eu-north-1", "/ChatTable"),
    ],
)
def test_a_url_of_the_grammar_is_taken_apart(text: str, scheme: str, authority: str, path: str) -> None:
    url = StoreURL.parse(text)
    assert (url.scheme, url.authority, url.path, url.query, url.text) == (scheme, authority, path, (), text)


def test_the_query_is_decoded_and_keeps_its_order() -> None:
    url = StoreURL.parse(
        "dynamodb://eu-north-1/Table?endpoint_url=http%3A%2F%2F127.0.0.1:8000&create=true&app=a+b&x=&y&&ttl=30d"
    )
    assert url.query == (
        ("endpoint_url", "http://127.0.0.1:8000"),
        ("create", "true"),
        ("app", "a b"),
        ("x", ""),
        ("y", ""),
        ("ttl", "30d"),
    )
    assert url.options() == dict(url.query)


def test_an_unencoded_url_may_be_the_value_of_an_option() -> None:
    url = StoreURL.parse("dynamodb://eu-north-1/Table?endpoint_url=http://127.0.0.1:8000&create=true")
    assert url.options() == {"endpoint_url": "http://127.0.0.1:8000", "create": "true"}
    assert str(url) == url.text


def test_the_path_is_decoded_on_demand() -> None:
    url = StoreURL.parse("sqlite:///my%20ch%C3%A4t%23%3F%40.db")
    assert url.path == "/my%20ch%C3%A4t%23%3F%40.db"
    assert url.decoded_path == "/my chät#?@.db"
    assert StoreURL.parse("sqlite:///100%.db").decoded_path == "/100%.db"


def test_an_option_given_twice_is_refused_by_name() -> None:
    url = StoreURL.parse("mongodb://h/db?tag=a&ttl=1d&tag=b&ttl=2d")
    with pytest.raises(ConfigError, match=r"'tag' is given twice in the mongodb:// URL"):
        url.options()
    with pytest.raises(ConfigError, match="'ttl' is given twice"):
        url.options(only={"ttl"})
    assert url.options(only={"w"}) == {}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("chat.db", "chat.db is a path: write sqlite:///chat.db"),
        ("/var/lib/my chat#1.sqlite3", "is a path: write sqlite:////var/lib/my%20chat%231.sqlite3"),
        ("C:\\data\\chat.db", "is a path: write sqlite:///C:\\data\\chat.db"),
        ("", "is empty: write scheme://…, such as sqlite:///chat.db"),
        (" \n", "is empty"),
        (
            "sqlite:/chat.db",
            "three slashes before a path from here, sqlite:///chat.db, and four before an absolute one",
        ),
        ("sqlite:chat.db", "three slashes before a path from here, sqlite:///chat.db, and"),
        ("sqlite//chat.db", "three slashes before a path from here, sqlite:///chat.db, and"),
        ("sqlite///chat.db", "three slashes before a path from here, sqlite:///chat.db, and"),
        (
            "SQLite:/var/my chat.db?ttl=3d",
            "sqlite:///var/my%20chat.db, and four before an absolute one, sqlite:////var/m",
        ),
        ("sqlite:/chat", "three slashes before a path from here, sqlite:///chat.db, and"),
        ("sqlite/chat.db", "sqlite/chat.db is a path: write sqlite:///sqlite/chat.db"),
        ("localhost:6379", "has no '://' in it: write scheme://…, such as sqlite:///chat.db or memory://"),
        ("redis:/localhost", "has no '://' in it"),
        ("://host", "what stands before '://' in the connection URL is no scheme"),
        ("1redis://host", "is no scheme"),
        ("my redis://host", "is no scheme"),
        (" redis://host", "begins or ends with white space: remove it"),
        ("redis://host/0\n", "begins or ends with white space: remove it"),
        ("redis://ho\tst", "has the control character '\\t' in it: remove it, or write %09"),
        ("sqlite:///a\udcff.db", "cannot be encoded as UTF-8"),
        ("sqlite:///a%ff.db", "the path of the sqlite:// URL, percent-decoded, is not UTF-8"),
        ("sqlite:///a%00.db", "without NUL"),
        ("redis://h?app=%ff", "the option 'app' in the redis:// URL, percent-decoded, is not UTF-8"),
        ("redis://h?%ff=app", "an option's name in the redis:// URL"),
        ("sqlite:///a#b.db", "the sqlite:// URL has a '#' in it, and the URL of a store has no fragment: write %23"),
        ("redis://u:p#w@host/0", "write %23 if it belongs to a password"),
        ("redis://u:p/w@host/0", "uncertain where its password ends. In a user name or password write %2F for '/'"),
        ("redis://u:p?w@host/0", "write %2F for '/', %3F for '?', %40 for '@'"),
        ("redis://host/0?client_name=a@b", "in a path or an option write %40 for '@'"),
    ],
)
def test_what_is_no_url_is_refused_with_the_mend(text: str, parts: str) -> None:
    with pytest.raises(InvalidURLError) as caught:
        StoreURL.parse(text)
    assert parts in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None  # a UnicodeDecodeError would carry the text


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (Path("data/chat.db"), "must be a str, not a PosixPath: write sqlite:///data/chat.db"),
        (None, "must be a str such as 'sqlite:///chat.db', not NoneType"),
        (b"redis://h", "not bytes"),
    ],
)
def test_what_is_no_text_is_refused_by_its_type(value: object, parts: str) -> None:
    with pytest.raises(InvalidURLError) as caught:
        StoreURL.parse(value)  # type: ignore[arg-type]
    assert parts.replace("PosixPath", type(value).__name__) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "hunter22",
        "sqlite:hunter22",
        "sqlite:u:hunter22@h/x.db",
        "user:hunter22@host:6379",
        "redis:user:hunter22@host",
        "hunter22:/x/y",
    ],
)
def test_a_text_without_a_scheme_is_not_shown_because_it_may_be_a_password(text: str) -> None:
    with pytest.raises(InvalidURLError) as caught:
        StoreURL.parse(text)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "keys", "left"),
    [
        ("redis://h/0?ttl=30d&max_messages=5", {"ttl", "max_messages"}, "redis://h/0"),
        ("redis://h/0?ttl=30d&", {"ttl"}, "redis://h/0"),
        ("redis://h/0?a=%7e+x&ttl=30d&b=1%2f2", {"ttl"}, "redis://h/0?a=%7e+x&b=1%2f2"),
        ("redis://h?%74tl=30d&a=1", {"ttl"}, "redis://h?a=1"),
        ("redis://u:p%40x@H%2e:1,h2/0?a=1&&a=1;b", {"ttl"}, "redis://u:p%40x@H%2e:1,h2/0?a=1&&a=1;b"),
        ("redis://h/0?", {"ttl"}, "redis://h/0?"),
        ("redis://h/0?ttl", {"ttl"}, "redis://h/0"),
        ("mongodb://h/?tag=a&tag=b&ttl=1", {"ttl"}, "mongodb://h/?tag=a&tag=b"),
        ("RedisS://Host", set(), "rediss://Host"),
        ("sqlite:///a://b?ttl=1", {"ttl"}, "sqlite:///a://b"),
    ],
)
def test_a_driver_gets_everything_but_our_options_untouched(text: str, keys: set[str], left: str) -> None:
    assert StoreURL.parse(text).without(keys) == left


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:secret@host/0?ttl=30d", "redis://user:***@host/0?ttl=30d"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://user@host", "redis://user@host"),
        ("redis://user:@host", "redis://user:@host"),
        ("redis://u:a@b:c@d@host:6379/0", "redis://u:***@host:6379/0"),
        ("mongodb://u:p%40x@h1:1,h2:2/db", "mongodb://u:***@h1:1,h2:2/db"),
        ("redis+sentinel://u:secret@h1,u:secret@h2/m", "redis+sentinel://u:***@h2/m"),
        ("redis://user:secret", "redis://user:***"),
        ("redis://:secret/0", "redis://:***/0"),
        ("redis://[::1]:6379,[::2]:secret", "redis://[::1]:6379,[::2]:***"),
        ("redis://h?password=secret&app=x", "redis://h?password=***&app=x"),
        ("redis://h?sentinel_Pass%77ord=secret", "redis://h?sentinel_Pass%77ord=***"),
        (
            "dynamodb://r/T?aws_secret_access_key=s3&session_token=t",
            "dynamodb://r/T?aws_secret_access_key=***&session_token=***",
        ),
        ("mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:x", "mongodb://h/?authMechanismProperties=***"),
        ("mongodb://h/?tlsCertificateKeyFilePassword=x", "mongodb://h/?tlsCertificateKeyFilePassword=***"),
        ("dynamodb://r/T?endpoint_url=http%3A%2F%2Fu%3Apw%40h", "dynamodb://r/T?endpoint_url=***"),
        ("redis://h?password=&a=1", "redis://h?password=&a=1"),
    ],
)
def test_secrets_are_shown_as_stars(text: str, shown: str) -> None:
    url = StoreURL.parse(text)
    assert str(url) == shown
    assert f"{url}" == shown
    assert repr(url) == f"StoreURL({shown!r})"


def test_only_secret_keys_count_as_secret() -> None:
    assert all(map(is_secret, ["password", "Sentinel-Password", "aws_session_token", "apiKey", "auth", "credentials"]))
    assert not any(map(is_secret, ["ttl", "authSource", "authMechanism", "remember_ids", "app", "tenant", "author"]))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("p%40ss%2Fw%20rd", "could not log in with {}"),
        ("p@ss:word", "{}"),
        ("pa+ss+word", "value='{}'"),
        ("p%C3%A4ss%22w'rd%5C", "x{}y"),
        ("it's-secret", "x{}y"),
    ],
)
def test_every_spelling_of_a_secret_is_scrubbed_from_a_driver_message(raw: str, message: str) -> None:
    url = StoreURL.parse(f"redis://user:{raw}@host/0")
    plain = unquote(raw)
    for spelling in (
        raw,
        plain,
        unquote_plus(raw),
        quote(plain),
        quote(plain, safe=""),
        quote_plus(plain),
        quote(plain, safe="").replace("%2F", "%2f").replace("%C3%A4", "%c3%a4"),
        repr(plain)[1:-1],
        repr(plain.encode())[2:-1],
        repr(f"""both ' and " {plain}""")[15:-1],
        json.dumps(plain)[1:-1],
    ):
        assert url.scrub(message.format(spelling)) == message.format("***"), spelling


def test_a_secret_that_begins_like_another_is_scrubbed_whole() -> None:
    assert StoreURL.parse("redis://u:pass@h?sentinel_password=password1").scrub("password1 pass") == "*** ***"


def test_secrets_in_the_query_are_scrubbed_too() -> None:
    url = StoreURL.parse(
        "mongodb://h/?password=pass%2Fword&authMechanismProperties=SERVICE_NAME:mongo,AWS_SESSION_TOKEN:tok%3Den"
        "&proxy=socks5%3A%2F%2Fu%3Aproxypw%40p"
    )
    assert url.scrub("pass/word tok=en tok%3Den proxypw SERVICE_NAME:mongo") == "*** *** *** *** SERVICE_NAME:mongo"


def test_a_host_that_was_forgotten_does_not_give_the_password_away() -> None:
    url = StoreURL.parse("redis://user:secret")
    assert url.scrub("Port could not be cast to integer value as 'secret'").endswith("as '***'")


def test_a_short_secret_is_scrubbed_where_it_stands_alone_and_leaves_words_alone() -> None:
    url = StoreURL.parse("redis://u:ab@host/0")
    assert url.scrub("database redis://u:ab@host refused 'ab'") == "database redis://u:***@host refused '***'"
    assert StoreURL.parse("redis://u:@host?token=").scrub("nothing to hide") == "nothing to hide"
    assert StoreURL.parse("sqlite:///chat.db").scrub("") == ""


ANY_PASSWORD = st.one_of(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4, max_size=20),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=12),
    st.text("/?#@:%&=+,;[]\\'\"aA2Ff", min_size=4, max_size=12),
)
TEMPLATES = [
    "redis://user:{}@host.example:6379/0",
    "redis://:{}@host.example",
    "redis+sentinel://user:{}@h1:26379,h2/master/0?max_messages=5",
    "unix://user:{}@/run/redis.sock",
    "mongodb://user:{}@h1:27017,h2/db?w=majority",
    "redis://host.example/0?app=x&password={}",
    "redis://user:{}",
]


def parsed(text: str) -> tuple[StoreURL | None, str]:
    """A URL, or None and the error's text."""
    try:
        return StoreURL.parse(text), ""
    except InvalidURLError as error:
        return None, str(error)


def is_part_of_what_we_say(password: str) -> bool:
    """Whether a password is also a piece of the URL or of an error's own text, where it would be found by chance."""
    own_text = [str(InvalidURLError)]
    for sample in [
        *(template.format("/@") for template in TEMPLATES),
        "redis://h#",
        "redis://h\x01",
        "a",
        "r://\udcff",
    ]:
        try:
            own_text.append(repr(StoreURL.parse(sample)))
        except InvalidURLError as error:
            own_text.append(str(error))
    text = "".join(own_text) + "".join(TEMPLATES)
    return password in text or password.strip("*") == "" or len(password.strip()) < 4


@pytest.mark.parametrize("template", TEMPLATES)
@given(password=ANY_PASSWORD)
@example(password="pa/ss")
@example(password="pa?s=s")
@example(password="pa#ss")
@example(password="p@s:s/w?r#d")
@example(password="%2Fpass%zz")
@example(password="12345678")
def test_no_password_is_shown_by_an_error_a_repr_or_a_scrubbed_text(template: str, password: str) -> None:
    assume(not is_part_of_what_we_say(password))
    for written in (password, quote(password, safe=""), quote_plus(password)):
        if template.endswith("?app=x&password={}") and "&" in written:
            continue  # there the password ends at the ampersand
        text = template.format(written)
        url, refusal = parsed(text)
        assert written not in refusal
        assert password not in refusal
        if url is None:
            continue
        if template == "redis://user:{}" and ("@" in written or written.isdigit() or set("/?,") & set(written)):
            continue  # a host, a port, or another part of the URL
        assert written not in repr(url)
        assert written not in str(url)
        seen = url.scrub(f"<{text}> <{url.without({'max_messages'})}> <{written}> <{text!r}> <{written!r}>")
        assert written not in seen
        if written != password:
            assert password not in url.scrub(f"<{password}> <{password!r}>")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), st.text(min_size=0, max_size=8))
def test_a_path_that_is_encoded_comes_back_as_it_was(path: str, value: str) -> None:
    assume(value.isprintable())
    url = StoreURL.parse(f"sqlite:///{quote(path, safe='')}?app={quote_plus(value)}")
    assert url.decoded_path == "/" + path
    assert url.options() == {"app": value}
    assert url.without(["app"]) == f"sqlite:///{quote(path, safe='')}"
