"""Options: what a URL's query and keywords may say, and what the error says otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr, model_validator

from chatkeep.errors import ConfigError
from chatkeep.options import StoreOptions, own_keys, parse_count, parse_duration, parse_options, parse_size
from chatkeep.url import StoreURL


class ServerOptions(StoreOptions):
    """A plugin's options: one of its own, and two that are the driver's."""

    pool: int = Field(10, ge=1)
    shards: float | None = None
    prefix: str = Field("chat", min_length=2)
    access_token: str = Field("", max_length=5)
    key: SecretStr = SecretStr("")

    driver_options: ClassVar[frozenset[str] | None] = frozenset({"socket_timeout", "tag"})

    @model_validator(mode="after")
    def prefix_is_not_the_app(self) -> ServerOptions:
        if self.prefix == self.app:
            raise ValueError(f"prefix and app are both {self.app!r}: make them differ")
        return self


class OpenOptions(StoreOptions):
    """A plugin that hands every other key to its driver."""

    driver_options = None


def options(query: str = "", model: type[StoreOptions] = StoreOptions, **overrides: Any) -> Any:
    return parse_options(model, StoreURL.parse(f"redis://user:hunter22@host/0{query}"), overrides)


def refusal(query: str = "", model: type[StoreOptions] = StoreOptions, **overrides: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        options(query, model, **overrides)
    text = str(caught.value)
    assert caught.value.__context__ is None  # nothing of pydantic's is printed with it
    assert not any(word in text.lower() for word in ("pydantic", "validation", "input", "value error", "hunter22"))
    return text


def test_the_defaults_are_those_that_are_documented() -> None:
    assert options().model_dump() == {
        "ttl": None,
        "ttl_policy": "write",
        "max_messages": None,
        "max_age": None,
        "remember_ids": 1000,
        "app": None,
        "tenant": None,
        "require_scope": False,
        "on_corrupt": "raise",
        "max_message_bytes": 16_777_216,
        "max_batch_bytes": 67_108_864,
        "timeout": 30.0,
        "connect_timeout": 5.0,
        "store_text": False,
    }
    assert all(field.description for field in StoreOptions.model_fields.values())


def test_a_query_sets_every_option() -> None:
    found = options(
        "?ttl=30d&ttl_policy=read&max_messages=200&max_age=1h30m&remember_ids=0&app=shop&tenant=acme&require_scope=yes"
        "&on_corrupt=skip&max_message_bytes=1MB&max_batch_bytes=2MiB&timeout=2.5&connect_timeout=500ms&store_text=on"
    )
    assert found.model_dump() == {
        "ttl": 2_592_000.0,
        "ttl_policy": "read",
        "max_messages": 200,
        "max_age": 5_400.0,
        "remember_ids": 0,
        "app": "shop",
        "tenant": "acme",
        "require_scope": True,
        "on_corrupt": "skip",
        "max_message_bytes": 1_000_000,
        "max_batch_bytes": 2_097_152,
        "timeout": 2.5,
        "connect_timeout": 0.5,
        "store_text": True,
    }


def test_keywords_beat_the_query_and_none_unsets() -> None:
    found = options("?ttl=30d&max_messages=5&app=x", ttl=timedelta(hours=1), max_messages=None)
    assert (found.ttl, found.max_messages, found.app) == (3600.0, None, "x")
    assert options("?ttl=nonsense", ttl=5).ttl == 5.0


@pytest.mark.parametrize("text", ["true", "1", "yes", "on", "TRUE"])
def test_a_switch_is_on_in_every_usual_word(text: str) -> None:
    assert options(f"?require_scope={text}").require_scope is True


@pytest.mark.parametrize("text", ["false", "0", "no", "off", "False"])
def test_a_switch_is_off_in_every_usual_word(text: str) -> None:
    assert options(f"?require_scope={text}", require_scope=text).require_scope is False


def test_options_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        options().ttl = 5


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30d", 2_592_000.0),
        ("12h", 43_200.0),
        ("90m", 5_400.0),
        ("45s", 45.0),
        ("1h30m", 5_400.0),
        ("2w", 1_209_600.0),
        ("1w2d3h4m5s6ms", 788_645.006),
        ("1.5h", 5_400.0),
        ("250ms", 0.25),
        ("90", 90.0),
        ("0.5", 0.5),
        ("0", 0.0),
        (90, 90.0),
        (1.25, 1.25),
        (timedelta(minutes=2, milliseconds=5), 120.005),
    ],
)
def test_a_duration_is_seconds(value: object, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds, abs=1e-9)
    assert isinstance(parse_duration(value), float)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("3 fortnights", "'3 fortnights' is no duration: expected seconds, a timedelta, or text such as 30d, 12h"),
        ("30D", "'30D' is no duration"),
        ("1m1h", "'1m1h' is no duration"),
        ("h", "'h' is no duration"),
        ("", "'' is no duration"),
        ("nan", "'nan' is no duration"),
        ("1e3", "'1e3' is no duration"),
        ("١d", "is no duration"),
        (float("nan"), "nan is no duration"),
        (True, "True is no duration"),
        (None, "None is no duration"),
        (b"5", "b'5' is no duration"),
        ("-5", "'-5' is a negative duration"),
        (-0.1, "-0.1 is a negative duration"),
        (timedelta(days=-1), "is a negative duration"),
        (float("inf"), "inf is longer than a hundred years"),
        (10**400, "is longer than a hundred years"),
        ("9" * 500, "999…' is longer than a hundred years"),
        ("5301w", "'5301w' is longer than a hundred years"),
    ],
)
def test_what_is_no_duration_is_refused_with_what_is_expected(value: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration(value)
    assert text.replace("999…'", "…") in str(caught.value)
    assert len(str(caught.value)) < 220


@given(st.integers(0, 3_000_000_000))
def test_a_duration_in_units_is_the_sum_of_its_units(seconds: int) -> None:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    text = f"{days}d{hours}h{rest // 60}m{rest % 60}s"
    assert parse_duration(text) == parse_duration(seconds) == parse_duration(str(seconds)) == seconds


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("16MB", 16_000_000),
        ("64KiB", 65_536),
        ("1.5MiB", 1_572_864),
        ("2gb", 2_000_000_000),
        ("1TiB", 1_099_511_627_776),
        ("10 kB", 10_000),
        ("512", 512),
        ("512B", 512),
        (1, 1),
    ],
)
def test_a_size_is_bytes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["16M", "MB", "", "0", 0, -1, "-1", "1.5", 1.5, True, None, "9" * 5000, "9999999TB"])
def test_what_is_no_size_is_refused_with_what_is_expected(value: object) -> None:
    with pytest.raises(ConfigError, match="is no size: expected bytes, 1 or more, or text such as 16MB or 64KiB"):
        parse_size(value)


@pytest.mark.parametrize("value", ["-1", -1, "", "1.0", 1.0, "1_000", " 1", "²", True, None, "9" * 5000, 2**53])
def test_what_is_no_count_is_refused_with_what_is_expected(value: object) -> None:
    with pytest.raises(ConfigError, match="is no count: expected a whole number, 0 or more"):
        parse_count(value)
    assert parse_count("0012") == 12
    assert parse_count(2**53 - 1) == parse_count(str(2**53 - 1)) == 2**53 - 1


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("?max_messages=many", "the option max_messages='many' (in the redis:// URL): 'many' is no count: expected a"),
        ("?ttl=0", "the option ttl='0' (in the redis:// URL): expected more than 0"),
        ("?ttl=soon", "'soon' is no duration: expected seconds"),
        ("?ttl=", "'' is no duration"),
        ("?timeout=0s", "the option timeout='0s' (in the redis:// URL): expected more than 0"),
        ("?ttl_policy=often", "ttl_policy='often' (in the redis:// URL): expected 'write', 'read' or 'fixed'"),
        ("?require_scope=maybe", "expected true or false (or 1, 0, yes, no, on, off)"),
        ("?require_scope", "require_scope='' (in the redis:// URL): expected true or false"),
        ("?app=", "the option app='' (in the redis:// URL): expected text that is not empty"),
        ("?max_message_bytes=big", "'big' is no size"),
        ("?ttl=1d&ttl=2d", "the option 'ttl' is given twice in the redis:// URL"),
    ],
)
def test_a_wrong_value_in_the_url_is_named_with_what_is_expected(query: str, parts: str) -> None:
    assert parts in refusal(query)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"max_messages": -1}, "the option max_messages=-1 (given as a keyword): -1 is no count"),
        ({"max_messages": True}, "True is no count"),
        ({"app": 5}, "the option app=5 (given as a keyword): expected text"),
        ({"app": b"x"}, "the option app=b'x' (given as a keyword): expected text"),
        ({"store_text": []}, "the option store_text=[] (given as a keyword): expected true or false"),
        ({"timeout": None}, "None is no duration"),
        ({"ttl": "x" * 1000}, "xxx…"),
    ],
)
def test_a_wrong_keyword_is_named_with_what_is_expected(overrides: dict[str, Any], parts: str) -> None:
    text = refusal("?max_messages=5", **overrides)
    assert parts in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("?pool=few", "the option pool='few' (in the redis:// URL): expected a whole number"),
        ("?pool=0", "expected 1 or more"),
        ("?shards=x", "the option shards='x' (in the redis:// URL): expected a number"),
        ("?prefix=x", "expected text of 2 characters or more"),
        ("?prefix=xx&app=xx", "the options of the redis:// store: prefix and app are both 'xx': make them differ"),
    ],
)
def test_a_plugin_options_own_rules_are_told_in_plain_words(query: str, parts: str) -> None:
    assert parts in refusal(query, ServerOptions)


def test_several_wrong_values_are_told_together() -> None:
    assert len(refusal("?ttl=soon&max_messages=many", timeout="x").splitlines()) == 3


def test_the_value_of_a_secret_option_is_never_shown() -> None:
    assert refusal("?access_token=abcdefgh", ServerOptions) == (
        "the option access_token=*** (in the redis:// URL) is wrong"
    )
    assert "***" in refusal("?ttl=hunter22")  # the URL's password, in the wrong place
    assert "hunter23" not in refusal(model=ServerOptions, access_token="hunter23")


def test_an_unknown_option_is_named_with_what_was_probably_meant() -> None:
    text = refusal("?max_mesages=5")
    assert text.startswith(
        "'max_mesages' is no option of a redis:// store. Did you mean max_messages? Its options: app, "
    )
    assert "ttl_policy" in text
    assert "Did you mean ttl?" in refusal("?TTL=5")
    assert "Did you mean max_age?" in refusal("?max-age=5")
    assert "Did you mean" not in refusal("?zzzzzz=5")
    text = refusal("?sockettimeout=5", ServerOptions)
    assert "Did you mean socket_timeout?" in text
    assert text.endswith("; handed to the driver: socket_timeout, tag")


def test_the_drivers_options_pass_even_when_repeated() -> None:
    assert options("?socket_timeout=5&tag=a&tag=b&ttl=1", ServerOptions).ttl == 1.0
    assert options("?whatever=5&whatever=6&ttl=1", OpenOptions).ttl == 1.0
    assert "Did you mean" in refusal("?socket_timeout=5")


def test_a_driver_option_as_a_keyword_is_sent_to_the_url() -> None:
    mend = "'tag' is an option of the driver for redis://: give it in the URL, as ?tag=…"
    assert refusal(model=ServerOptions, tag="a") == mend
    assert refusal(model=OpenOptions, tag="a") == mend


def test_own_keys_are_what_a_driver_must_not_see() -> None:
    assert own_keys(ServerOptions) == own_keys(StoreOptions) | {"pool", "shards", "prefix", "access_token", "key"}
    url = StoreURL.parse("redis://host/0?ttl=1&pool=2&tag=a")
    assert url.without(own_keys(ServerOptions)) == "redis://host/0?tag=a"
