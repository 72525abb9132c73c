# Plain data that says itself what it is.
#
# An exception's arguments and attributes have no annotations, yet must survive. So what JSON does not distinguish is written with its
# type's name: {"$type": "tuple", "value": [..]}. What is no plain data at all is kept as the beginning of its repr: for people, not code.
from __future__ import annotations

import enum
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from fusee_mp.payload.classes import find, name_of
from fusee_mp.payload.forms import STR, Form
from fusee_mp.payload.misfit import Misfit, shown
from fusee_mp.payload.scalars import TEXT_TYPES, DatetimeForm, PathForm, TextForm

DEPTH_MAX = 16


class Opaque(str):
    """What is left of a value that is no plain data: its type and the beginning of its repr."""


def is_large(value: Any, most: int) -> bool:
    """Whether plain data has more than about `most` bytes of text and items, found without going through all of it."""
    left, todo = most, [value]
    while todo and left >= 0:
        item = todo.pop()
        left -= 8
        if isinstance(item, (str, bytes, bytearray)):
            left -= len(item)
        elif isinstance(item, dict):
            left -= 8 * len(item)
            if left >= 0:
                todo += item.keys()
                todo += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            left -= 8 * len(item)
            if left >= 0:
                todo += item
    return left < 0


def dump(value: Any, depth: int = DEPTH_MAX) -> Any:
    """The value as JSON builtins. Never fails: what cannot be carried is described in words."""
    if depth == 0:
        return _tagged("repr", shown(value))
    writer = _WRITERS.get(type(value))
    try:
        if writer is not None:
            return writer(value, depth - 1)
        return _enum(value) if isinstance(value, enum.Enum) else _tagged("repr", shown(value))
    except (Misfit, RecursionError):
        return _tagged("repr", shown(value))


def load(data: Any) -> Any:
    """The value from JSON builtins; an `Opaque` where only words were kept. Raises Misfit for data that `dump` never writes."""
    if type(data) is list:
        return [load(item) for item in data]
    if type(data) is not dict:
        return data
    if "$type" not in data:
        return {key: load(item) for key, item in data.items()}
    reader = _READERS.get(data["$type"]) if isinstance(data["$type"], str) else None
    if reader is None or "value" not in data:
        raise Misfit("a known $type with a value", shown(data), "Upgrade this program: a newer one wrote it.")
    try:
        return reader(data["value"])
    except (TypeError, ValueError, ArithmeticError):
        raise Misfit(f'a value of $type "{data["$type"]}"', shown(data["value"]), "The payload was altered.") from None


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {"$type": kind, "value": value}


def _text(value: str, depth: int) -> str:
    return value.encode("utf-8", "backslashreplace").decode()


def _float(value: float, depth: int) -> Any:
    return value if math.isfinite(value) else _tagged("float", str(value))


def _list(value: Any, depth: int) -> Any:
    return [dump(item, depth) for item in value]


def _named_list(kind: str) -> Callable[[Any, int], Any]:
    return lambda value, depth: _tagged(kind, _list(value, depth))


def _dict(value: dict[Any, Any], depth: int) -> Any:
    if all(type(key) is str for key in value) and "$type" not in value:
        return {_text(key, depth): dump(item, depth) for key, item in value.items()}
    return _tagged("dict", [[dump(key, depth), dump(item, depth)] for key, item in value.items()])


def _enum(value: enum.Enum) -> Any:
    return _tagged("enum", [name_of(type(value)), value.name, shown(value)])


def _load_enum(data: Any) -> Any:
    class_name, member, text = data
    kind = find(class_name)
    try:
        return kind[member] if isinstance(kind, enum.EnumMeta) else Opaque(text)
    except KeyError:
        return Opaque(text)


def _load_dict(pairs: Any) -> dict[Any, Any]:
    return {load(key): load(item) for key, item in pairs}


def _writer_of(form: Form, kind: str) -> Callable[[Any, int], Any]:
    return lambda value, depth: _tagged(kind, form.dump(value))


_TEXT_FORMS: dict[type, Form] = {kind: TextForm(kind) for kind in TEXT_TYPES}
_TEXT_FORMS |= {form.type: form for form in (DatetimeForm(), PathForm(Path))}
_NAMES = {kind: "path" if issubclass(kind, Path) else kind.__name__.lower() for kind in _TEXT_FORMS}

_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    type(None): lambda value, depth: value, bool: lambda value, depth: value, int: lambda value, depth: value,
    str: _text, float: _float, list: _list, dict: _dict,
    tuple: _named_list("tuple"), set: _named_list("set"), frozenset: _named_list("frozenset"),
    **{kind: _writer_of(form, _NAMES[kind]) for kind, form in _TEXT_FORMS.items()},
    Decimal: lambda value, depth: _tagged("decimal", str(value)),
    Opaque: lambda value, depth: _tagged("repr", str(value)),
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float, "dict": _load_dict, "enum": _load_enum, "repr": lambda data: Opaque(STR.load(data)),
    "tuple": lambda data: tuple(load(data)), "set": lambda data: set(load(data)), "frozenset": lambda data: frozenset(load(data)),
    **{_NAMES[kind]: form.load for kind, form in _TEXT_FORMS.items()},
    "decimal": Decimal,
}


def size_of(data: Any) -> int:
    """Bytes of JSON."""
    return len(msgspec.json.encode(data))
