"""The options of a store: one pydantic model, which each backend extends with its own.

A backend's options::

    class RedisOptions(StoreOptions):
        prefix: str = Field("chatkeep", description="What every key begins with.")
        driver_options: ClassVar[frozenset[str] | None] = frozenset({"health_check_interval"})

`parse_options` reads them from a URL's query and from keywords. Durations are seconds, sizes are bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .errors import ConfigError
from .url import HIDDEN, is_secret

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from .url import StoreURL

_DURATION_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit})?" for unit in _DURATION_UNITS))
_LONGEST = 36_525 * 86_400.0
"""A hundred years: well inside what every database's clock can add to today."""
_SIZE = re.compile(r"(?P<digits>[0-9]{1,16})(?:\.(?P<fraction>[0-9]{1,6}))? ?(?P<unit>[a-z]*)", re.IGNORECASE)
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{prefix + "b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{prefix + "ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LARGEST = 2**53 - 1
"""The largest whole number that every database and JSON reader keeps exactly."""


def parse_duration(value: object) -> float:
    """Seconds, zero or more, from a number, a timedelta, or text such as ``30d``, ``12h``, ``90m``, ``45s``, ``1h30m``.

    Units: ``w``, ``d``, ``h``, ``m`` (minutes), ``s``, ``ms``; text without a unit is seconds. A `ConfigError` for
    anything else, for what is negative, and for what is longer than a hundred years.
    """
    seconds = _seconds(value)
    if seconds is None or math.isnan(seconds):
        raise ConfigError(f"{_shown(value)} is no duration: {_DURATION_EXPECTED}")
    if seconds < 0:
        raise ConfigError(f"{_shown(value)} is a negative duration: {_DURATION_EXPECTED}")
    if seconds > _LONGEST:
        raise ConfigError(f"{_shown(value)} is longer than a hundred years: {_DURATION_EXPECTED}")
    return seconds


_DURATION_EXPECTED = "expected seconds, a timedelta, or text such as 30d, 12h, 90m, 45s, 1h30m"


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(min(max(value, -1), _LONGEST * 2)) if isinstance(value, int) else value
    if not isinstance(value, str):
        return None
    if _NUMBER.fullmatch(value.removeprefix("-")):
        return float(value)
    match = _DURATION.fullmatch(value)
    if not value or match is None:
        return None
    return sum(float(amount) * _DURATION_UNITS[unit] for unit, amount in match.groupdict().items() if amount)


def parse_size(value: object) -> int:
    """Bytes, one or more, from a whole number or text such as ``16MB`` (1000²), ``64KiB`` (1024) or ``4096``."""
    size = _bytes(value)
    if size is None or not 1 <= size <= _LARGEST:
        raise ConfigError(f"{_shown(value)} is no size: expected bytes, 1 or more, or text such as 16MB or 64KiB")
    return size


def _bytes(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    factor = _SIZE_UNITS.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        return None
    fraction = match["fraction"] or ""
    size, rest = divmod(int(match["digits"] + fraction) * factor, 10 ** len(fraction))
    return size if rest == 0 or factor > 1 else None


def parse_count(value: object) -> int:
    """A whole number, zero or more, from an int or its decimal digits."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) <= len(str(_LARGEST)) else -1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ConfigError(f"{_shown(value)} is no count: expected a whole number, 0 or more")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
"""Seconds, more than zero."""
Size = Annotated[int, BeforeValidator(parse_size)]
"""Bytes, one or more."""
Count = Annotated[int, BeforeValidator(parse_count)]
"""A whole number, zero or more."""
ScopeField = Annotated[str, Field(strict=True, min_length=1)]
"""A field of a scope's address: text that is not empty."""


class StoreOptions(BaseModel):
    """What every store can be told, whatever its backend."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    driver_options: ClassVar[frozenset[str] | None] = frozenset()
    """The query keys that belong to the driver and reach it untouched; None: every key that is no option of ours."""

    ttl: Duration | None = Field(
        None, description="How long a session lives after its last write, such as 30d. Not set: for ever."
    )
    ttl_policy: Literal["write", "read", "fixed"] = Field(
        "write", description="What renews a session's time: each write, each read as well, or nothing (fixed)."
    )
    max_messages: Count | None = Field(
        None,
        description="How many messages a log keeps; more where the oldest turn would be cut, for turns stay whole. "
        "Not set: all; 0: none.",
    )
    max_age: Duration | None = Field(
        None, description="How old a log's messages may grow, to the beginning of a turn. Not set: any age."
    )
    remember_ids: Count = Field(
        1000, description="How many ids of trimmed messages a log goes on knowing, so that none is stored twice."
    )
    app: ScopeField | None = Field(None, description="The app of the store's root scope.")
    tenant: ScopeField | None = Field(None, description="The tenant of the store's root scope.")
    require_scope: bool = Field(False, description="Refuse sessions at the root: only scoped views may have any.")
    on_corrupt: Literal["raise", "skip", "raw"] = Field(
        "raise", description="What reading does with a damaged record: raise, skip it, or return it raw."
    )
    max_message_bytes: Size = Field(16 * 1024**2, description="The largest message, encoded, such as 16MiB.")
    max_batch_bytes: Size = Field(64 * 1024**2, description="The largest batch, encoded, such as 64MiB.")
    timeout: Duration = Field(30.0, description="How long one operation may take.")
    connect_timeout: Duration = Field(5.0, description="How long connecting to the database may take.")
    store_text: bool = Field(
        False, description="Keep each message's plain text beside its payload, for display and search."
    )


OptionsT = TypeVar("OptionsT", bound=StoreOptions)


def own_keys(model: type[StoreOptions]) -> frozenset[str]:
    """The names of a model's options: what `StoreURL.without` removes before a driver sees the URL."""
    return frozenset(model.model_fields)


def parse_options(model: type[OptionsT], url: StoreURL, overrides: Mapping[str, Any]) -> OptionsT:
    """The options from a URL's query and from keywords, which win.

    A `ConfigError` names an option that nobody knows (and the one that was probably meant), one that is given twice,
    and one whose value is wrong, with what is expected. The value is shown unless the option or the value is secret.
    """
    own = own_keys(model)
    driver = model.driver_options
    unknown = [key for key, _ in url.query if key not in own and driver is not None and key not in driver]
    unknown += [key for key in overrides if key not in own]
    if unknown:
        raise ConfigError(_unknown(unknown[0], model, url, overrides))
    values: dict[str, Any] = {**url.options(only=own), **overrides}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    # Raised out here: as its context, pydantic's error would be printed with it, in pydantic's words.
    raise ConfigError(_wrong(problems, values, url, overrides))


def _unknown(name: str, model: type[StoreOptions], url: StoreURL, overrides: Mapping[str, Any]) -> str:
    own, driver = own_keys(model), model.driver_options
    if name in overrides and (driver is None or name in driver):
        return f"{name!r} is an option of the driver for {url.scheme}://: give it in the URL, as ?{name}=…"
    close = get_close_matches(name.lower().replace("-", "_"), sorted(own | (driver or frozenset())), n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    more = f"; handed to the driver: {_listed(driver)}" if driver else ""
    return (
        f"{url.scrub(_shown(name))} is no option of a {url.scheme}:// store.{meant} Its options: {_listed(own)}{more}"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _wrong(problems: list[ErrorDetails], values: Mapping[str, Any], url: StoreURL, overrides: Mapping[str, Any]) -> str:
    texts: dict[str, str] = {}
    for problem in problems:
        name = str(problem["loc"][0]) if problem["loc"] else ""
        texts.setdefault(name, _problem(name, problem, values, url, overrides))
    return "\n".join(texts.values())


def _problem(
    name: str, problem: ErrorDetails, values: Mapping[str, Any], url: StoreURL, overrides: Mapping[str, Any]
) -> str:
    expected = _expected(problem)
    if name not in values:
        return url.scrub(f"the options of the {url.scheme}:// store{f': {name}' if name else ''}: {expected}")
    where = "given as a keyword" if name in overrides else f"in the {url.scheme}:// URL"
    if is_secret(name) or "Secret" in type(values[name]).__name__:
        return f"the option {name}={HIDDEN} ({where}) is wrong"
    return f"the option {name}={url.scrub(_shown(values[name]))} ({where}): {url.scrub(expected)}"


_EXPECTED = {
    "bool_parsing": "true or false (or 1, 0, yes, no, on, off)",
    "bool_type": "true or false",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
}
"""What is expected, by pydantic's name of the problem."""


def _expected(problem: ErrorDetails) -> str:
    context = problem.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    if problem["type"] == "missing":
        return "it needs a value"
    if problem["type"] == "string_too_short" and context.get("min_length") != 1:
        return f"expected text of {context['min_length']} characters or more"
    template = _EXPECTED.get(problem["type"])
    if template is None:
        return problem["msg"].replace("Input should", "it should")
    return f"expected {template.format(**context)}"
