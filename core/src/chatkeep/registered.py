"""Types that come back as what they were: pydantic models, dataclasses, Enums, NamedTuples, and the caller's own.

The first four need no code of the caller's: they are written field by field and built again by pydantic.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from .errors import ConfigError, CorruptRecordError
from .paths import Path, render

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class RegisteredType(NamedTuple):
    """A type whose instances come back as what they were.

    ``dump`` turns an instance into a value that can be stored (it may hold other storable values);
    ``load`` turns that value into an equal instance. `name` stands in the stored data.
    """

    name: str
    type: type
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Registration:
    """One registered type. Without `dump` and `load` it is one that can be written field by field."""

    name: str
    type: type
    dump: Callable[[Any], Any] | None = None
    load: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(f"{full_name(self.type)} needs a name that is not empty")
        if (self.dump is None) != (self.load is None):
            raise ConfigError(f"{full_name(self.type)} was given only one of dump= and load=; give both, or none")
        if self.dump is None and not has_fields(self.type):
            raise ConfigError(
                f"{full_name(self.type)} is no pydantic model, dataclass, Enum or NamedTuple; "
                f"say how: RegisteredType({self.name!r}, {self.type.__name__}, dump=…, load=…)"
            )

    def content(self, value: Any) -> Any:
        return content(value) if self.dump is None else self.dump(value)

    def loaded(self, content: Any) -> Any:
        """The instance that was written as `content`; a CorruptRecordError if that makes none."""
        try:
            if self.load is not None:
                return self.load(content)
            if issubclass(self.type, Enum):
                return self.type(content)
            return adapter(self.type).validate_python(content, by_alias=False, by_name=True)
        except ValidationError as error:
            place, reason = first_failure(error)
            raise CorruptRecordError(f"the stored {self.name} does not fit its class at {place}: {reason}") from error
        except ConfigError:
            raise
        except Exception as error:  # Whatever the type's own code raises.
            raise CorruptRecordError(f"the stored {self.name} could not be loaded: {error!r}") from error


def has_fields(kind: type) -> bool:
    """Whether instances can be written field by field."""
    return dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel | Enum) or is_named_tuple(kind)


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")


def content(value: Any) -> Any:
    """What a model, dataclass, Enum or NamedTuple holds, one level deep: what its class can be built from."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel) and value.__pydantic_root_model__:
        return value.__dict__["root"]
    if isinstance(value, BaseModel):
        held = value.__dict__
        fields = {name: held[name] for name in type(value).model_fields if name in held}
        return {**fields, **(value.model_extra or {})}
    if isinstance(value, tuple):
        return tuple(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}


def base_value(value: Any) -> Any:
    """The equal value of the built-in type that `value`'s class extends; None if that is none of JSON's."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if dataclasses.is_dataclass(value):
        return None
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return list(value)
    return None


def same(left: Any, right: Any, trusted: Container[type] = ()) -> bool:
    """Whether `right`, which was read back, is what `left` was; also for classes without an ``==`` of their own.

    Instances of `trusted` types are taken to be the same: their ``load`` is the caller's.
    """
    kind = type(left)
    if kind is not type(right):
        base = base_value(left)
        return base is not None and type(base) is type(right) and same(base, right, trusted)
    if kind in trusted:
        return True
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(item, right[key], trusted) for key, item in left.items())
    if isinstance(left, BaseModel):
        return same(content(left), content(right), trusted)
    if dataclasses.is_dataclass(left):
        names = [field.name for field in dataclasses.fields(left)]
        return all(same(getattr(left, name), getattr(right, name), trusted) for name in names)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(*pair, trusted) for pair in zip(left, right, strict=True))
    return bool(left == right)


@functools.lru_cache(maxsize=512)
def _cached_adapter(kind: Any) -> TypeAdapter[Any]:
    return new_adapter(kind)


def new_adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - half the time that importing chatkeep would take

    return TypeAdapter(kind)


def adapter(kind: Any) -> TypeAdapter[Any]:
    """The pydantic adapter for a type or a type expression; a ConfigError if it has none."""
    try:
        try:
            return _cached_adapter(kind)
        except TypeError:  # An expression that cannot be hashed.
            return new_adapter(kind)
    except PydanticUserError as error:
        raise ConfigError(
            f"pydantic cannot validate {type_name(kind)} ({first_line(error)}); register it with dump= and load="
        ) from error


def first_failure(error: ValidationError) -> tuple[str, str]:
    """Where and why, without the offending value: that may be a secret."""
    failure = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path: Path = None
    for step in failure["loc"]:
        path = (path, step)
    return render("$", path), failure["msg"]


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
