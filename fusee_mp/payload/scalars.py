"""Forms of single values that JSON has no kind for: dates, numbers, bytes, paths, enumerations, literals, and types nobody can carry."""
from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from fusee_mp.payload.forms import INT, STR, Form, Source
from fusee_mp.payload.misfit import Misfit, shown

# How each type's test ends; the slow way decides about the rest (NaN, zones, offsets that are not whole minutes).
_TEXT_TESTS: dict[type, str] = {
    bytes: "", bytearray: "", UUID: "", date: "", timedelta: "",
    Decimal: " and {v}.is_finite()",
    time: " and {v}.tzinfo is None",
    datetime: " and ({v}.tzinfo is None or {v}.tzinfo is UTC)",
}
TEXT_TYPES = frozenset(_TEXT_TESTS)


class TextForm(Form):
    """A type that msgspec writes as text. The value is refused unless its text reads back as an equal value."""

    kinds = frozenset({"string"})

    def __init__(self, type: type) -> None:
        self.type = type
        self.name = type.__name__

    def dump(self, value: Any) -> Any:
        if type(value) is not self.type:
            raise self.misfit(value)
        if type(value) is Decimal and not value.is_finite():
            raise Misfit("a finite Decimal", shown(value), "Only an annotation of float allows NaN and infinities.")
        text = self._text(value)
        if self.load(text) != value:
            raise Misfit(self.name, f"{shown(value)}, whose text reads back as another value", "Round it, or convert it to UTC.")
        return text

    def _text(self, value: Any) -> Any:
        return msgspec.to_builtins(value)

    def load(self, data: Any) -> Any:
        try:
            return msgspec.convert(STR.load(data), self.type)
        except msgspec.ValidationError:
            raise self.misfit(data) from None

    def test(self, var: str, source: Source) -> str:
        source.names["UTC"] = UTC
        rest = _TEXT_TESTS[self.type].replace("{v}", var)
        return f"(type({var}) is {source.bind(self.type)}{rest})"


class DatetimeForm(TextForm):
    """A zone travels after the offset, in brackets, so that an instant keeps its zone and both readings of a repeated hour differ."""

    def __init__(self) -> None:
        super().__init__(datetime)

    def _text(self, value: Any) -> Any:
        zone = value.tzinfo
        if isinstance(zone, ZoneInfo) and zone.key:
            return f"{value.isoformat()}[{zone.key}]"
        return super()._text(value)

    def load(self, data: Any) -> Any:
        text = STR.load(data)
        if not text.endswith("]"):
            return super().load(text)
        moment, _, key = text[:-1].partition("[")
        try:
            return _in_zone(datetime.fromisoformat(moment), ZoneInfo(key))
        except (ValueError, LookupError, OSError):
            raise Misfit("an ISO 8601 date and time with a zone known here", shown(data), "Install the tzdata package.") from None


def _in_zone(moment: datetime, zone: ZoneInfo) -> datetime:
    """The wall clock as it was written, where the zone still allows it with that offset, else the same instant."""
    for fold in (0, 1):
        local = moment.replace(tzinfo=zone, fold=fold)
        if local.utcoffset() == moment.utcoffset():
            return local
    return moment.astimezone(zone)


class PathForm(Form):
    """A path as its text; a platform's own path class is meant by Path and PurePath."""

    kinds = frozenset({"string"})

    def __init__(self, type: type[PurePath]) -> None:
        self.declared = type
        self.type = _platform_class(type)
        self.name = type.__name__

    def dump(self, value: Any) -> str:
        if type(value) is not self.type:
            raise self.misfit(value)
        return STR.dump(str(value))

    def load(self, data: Any) -> PurePath:
        return self.type(STR.load(data))

    def test(self, var: str, source: Source) -> str:
        return f"type({var}) is {source.bind(self.type)}"


def _platform_class(declared: type[PurePath]) -> type[PurePath]:
    return declared().__class__


class EnumForm(Form):
    """A member by its value where all values are text or all whole numbers, else by its name."""

    def __init__(self, type: type[enum.Enum]) -> None:
        self.type = type
        self.name = type.__qualname__
        values = {_kind(member.value) for member in type}
        self.native = values in ({"string"}, {"int"})
        self.kinds = frozenset(values) if self.native else frozenset({"string"})

    def dump(self, value: Any) -> Any:
        if type(value) is not self.type:
            raise self.misfit(value)
        if not self.native:
            return STR.dump(value.name)
        return value.value

    def load(self, data: Any) -> Any:
        try:
            if not self.native:
                return self.type[STR.load(data)]
            if _kind(data) in self.kinds:  # True and 1.0 equal 1, and are no value of a member.
                return self.type(data)
            raise self.misfit(data)
        except (ValueError, KeyError, TypeError, Misfit):
            raise Misfit(f"a member of {self.name}", shown(data), "Keep members that are in journals, or add the missing one.") from None

    def test(self, var: str, source: Source) -> str:
        return f"type({var}) is {source.bind(self.type)}"


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    return "int" if isinstance(value, int) and not isinstance(value, bool) else "other"


class LiteralForm(Form):
    """One of the listed values. True and 1 are two values here, which is more than msgspec knows."""

    def __init__(self, values: tuple[Any, ...], forms: dict[type, Form]) -> None:
        self.name = f"one of {', '.join(map(repr, values))}"
        self._values = values
        self._forms = forms
        self.native = all(value is None or type(value) in (int, str) for value in values)
        self.kinds = frozenset().union(*(forms[type(value)].kinds for value in values))

    def dump(self, value: Any) -> Any:
        if not self._lists(value):
            raise self.misfit(value, "Use one of the listed values.")
        return self._forms[type(value)].dump(value)

    def load(self, data: Any) -> Any:
        for value in self._values:
            dumped = self._forms[type(value)].dump(value)
            if type(dumped) is type(data) and dumped == data:
                return value
        raise self.misfit(data, "Keep values that are in journals.")

    def _lists(self, value: Any) -> bool:
        return any(type(value) is type(known) and value == known for known in self._values)

    def test(self, var: str, source: Source) -> str:
        return f"{source.bind(self._lists)}({var})"


class FlagForm(Form):
    """A Flag and its combinations, as a whole number."""

    native = True
    kinds = frozenset({"int"})

    def __init__(self, type: type[enum.Flag]) -> None:
        self.type = type
        self.name = type.__qualname__

    def dump(self, value: Any) -> int:
        if type(value) is not self.type:
            raise self.misfit(value)
        return int(value.value)

    def load(self, data: Any) -> Any:
        try:
            return self.type(INT.load(data))
        except ValueError:
            raise Misfit(f"flags of {self.name}", shown(data), "Keep flags that are in journals.") from None

    def test(self, var: str, source: Source) -> str:
        return f"type({var}) is {source.bind(self.type)}"


class ForeignForm(Form):
    """A class with a converter of its own: values go through its two functions and are compared with what comes back."""

    revises = True

    def __init__(self, type: type, kinds: frozenset[str], to_json: Callable[[Any], Any], from_json: Callable[[Any], Any]) -> None:
        self.type = type
        self.kinds = kinds
        self.name = type.__qualname__
        self._to_json = to_json
        self._from_json = from_json

    def dump(self, value: Any) -> Any:
        if type(value) is not self.type:
            raise self.misfit(value)
        return self._run(self._to_json, value)

    def load(self, data: Any) -> Any:
        return self._run(self._from_json, data)

    def _run(self, convert: Callable[[Any], Any], value: Any) -> Any:
        try:
            return convert(value)
        except Exception as error:
            raise Misfit(self.name, f"{shown(value)}, which it refuses ({type(error).__name__}: {error})",
                         "Mend the value or the class.") from error

    def test(self, var: str, source: Source) -> str:
        return f"type({var}) is {source.bind(self.type)}"


class ConstrainedForm(Form):
    """A type with a `msgspec.Meta` beside it: what msgspec would refuse to read is refused before it is sent."""

    def __init__(self, form: Form, annotation: Any) -> None:
        self._form = form
        self._annotation = annotation
        self.name = form.name
        self.kinds = form.kinds
        self.tag = form.tag

    def parts(self) -> Iterable[Form]:
        return (self._form,)

    def dump(self, value: Any) -> Any:
        return self._checked(self._form.dump(value))

    def load(self, data: Any) -> Any:
        return self._form.load(self._checked(data))

    def _checked(self, data: Any) -> Any:
        try:
            msgspec.convert(data, self._annotation)
        except msgspec.ValidationError as error:
            raise Misfit(f"{self.name} within its constraints", f"{shown(data)} ({error})",
                         "Send a value that the annotation allows.") from None
        return data

    def _holds(self, value: Any) -> bool:
        self._checked(self._form.dump(value))
        return True

    def test(self, var: str, source: Source) -> str:
        return f"({self._form.test(var, source)} and {source.bind(self._holds)}({var}))"


class NoForm(Form):
    """A type that no value of can be carried: it says so for whatever is sent."""

    native = False
    kinds = frozenset()

    def __init__(self, annotation: Any, instead: str = "a class that the converter knows (dataclass, attrs, msgspec, pydantic)") -> None:
        self.name = f"{instead}; the annotation is {getattr(annotation, '__qualname__', annotation)}"

    def dump(self, value: Any) -> Any:
        raise self.misfit(value, "Make it a dataclass, or annotate and send its plain data.")

    def load(self, data: Any) -> Any:
        return self.dump(data)

    def test(self, var: str, source: Source) -> str:
        return "False"

