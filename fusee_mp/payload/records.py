# Forms of classes with named fields: dataclasses, attrs classes, msgspec Structs, TypedDicts and named tuples.
#
# Loading ignores fields that the class no longer has and gives new ones their default, so that a class may grow while runs are open.
# `__init__` is not called: the state is put back as it was. `__post_init__` is (it may check what a client sent), so such a class
# revises, and a value that its own `__post_init__` would change again is refused where it is sent.
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from fusee_mp.payload.forms import Form, Source, at, slot
from fusee_mp.payload.misfit import Misfit, shown

MISSING = dataclasses.MISSING


class Field(NamedTuple):
    """attribute: in the object. key: in JSON. default: makes it where JSON has none; MISSING if it is required."""

    attribute: str
    key: str
    form: Form
    default: Any = MISSING


class RecordForm(Form):
    """An object, or an array where the class says so. `fill` comes after the making, so that a class may contain itself."""

    is_array = False
    fields: tuple[Field, ...] = ()

    def __init__(self, type: Any) -> None:
        self.type = type
        self.name = type.__qualname__
        self.kinds = frozenset({"array" if self.is_array else "object"})

    def fill(self, fields: Iterable[Field]) -> None:
        self.fields = tuple(fields)

    def parts(self) -> Iterable[Form]:
        return [field.form for field in self.fields]

    def dump(self, value: Any) -> Any:
        if type(value) is not self.type:
            raise self.misfit(value, "Send that very class, or annotate with a union of the classes that may come.")
        dumped = [(field.key, at(f".{field.attribute}", field.form.dump, self._get(value, field))) for field in self.fields]
        return [item for _, item in dumped] if self.is_array else {key: item for key, item in dumped if item is not msgspec.UNSET}

    def _get(self, value: Any, field: Field) -> Any:
        try:
            return getattr(value, field.attribute)
        except AttributeError:
            raise Misfit(f"an attribute {field.attribute}", f"{self.name} without it", "Set every field before it is sent.") from None

    def load(self, data: Any) -> Any:
        values = self._read_array(data) if self.is_array else self._read_object(data)
        return self.make({field.attribute: self._value(field, values) for field in self.fields})

    def _read_object(self, data: Any) -> dict[str, Any]:
        if type(data) is not dict:
            raise self.misfit(data, f"Send an object with the fields of {self.name}.")
        return data

    def _read_array(self, data: Any) -> dict[str, Any]:
        if type(data) is not list:
            raise self.misfit(data, f"Send an array of the fields of {self.name}, in their order.")
        return {field.key: item for field, item in zip(self.fields, data)}

    def _value(self, field: Field, values: dict[str, Any]) -> Any:
        if field.key in values:
            return at(f".{field.attribute}", field.form.load, values[field.key])
        if field.default is MISSING:
            raise Misfit(f"a field {field.key} of {self.name}", f"none among {sorted(values)!r:.80}",
                         "Give it, or give the class a default.")
        return field.default()

    def make(self, values: dict[str, Any]) -> Any:
        return self.type(**values)

    def test(self, var: str, source: Source) -> str:
        return f"{source.function(self, lambda v: self._fields_test(v, source))}({var})"

    def _fields_test(self, var: str, source: Source) -> str:
        tests = [field.form.test(f"{var}.{field.attribute}", source) for field in self.fields]
        return " and ".join([f"type({var}) is {source.bind(self.type)}", *tests])


class ObjectForm(RecordForm):
    """A dataclass or attrs class. finish: what the class wants called once its fields are set, if anything."""

    def __init__(self, type: Any, finish: Callable[[Any], None] | None, is_native: bool) -> None:
        super().__init__(type)
        self._finish = finish
        self.native = is_native
        self.revises = finish is not None

    def make(self, values: dict[str, Any]) -> Any:
        made = self.type.__new__(self.type)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        if self._finish is not None:
            _run_class_code(self.name, self._finish, made)
        return made


class StructForm(RecordForm):
    """A msgspec Struct, with its tag and its renamed fields."""

    def __init__(self, type: type[msgspec.Struct]) -> None:
        config = type.__struct_config__
        self.is_array = config.array_like
        self.tag = config.tag
        self._tag_field = config.tag_field or ""
        self._is_strict = config.forbid_unknown_fields
        super().__init__(type)
        self.revises = hasattr(type, "__post_init__") or self._is_strict

    def dump(self, value: Any) -> Any:
        dumped = super().dump(value)
        if self.tag is None:
            return dumped
        return [self.tag, *dumped] if self.is_array else {self._tag_field: self.tag, **dumped}

    def _read_object(self, data: Any) -> dict[str, Any]:
        values = super()._read_object(data)
        if self.tag is not None and values.get(self._tag_field, self.tag) != self.tag:
            raise self.misfit(data, f'Its "{self._tag_field}" must be {self.tag!r}.')
        unknown = values.keys() - {field.key for field in self.fields} - {self._tag_field}
        if unknown and self._is_strict:
            raise Misfit(f"the fields of {self.name}", f"also {sorted(unknown)!r:.80}", "Leave them out: the class forbids unknown fields.")
        return values

    def _read_array(self, data: Any) -> dict[str, Any]:
        if self.tag is not None and type(data) is list:
            if data[:1] != [self.tag]:
                raise self.misfit(data, f"Its first element must be {self.tag!r}.")
            data = data[1:]
        return super()._read_array(data)

    def make(self, values: dict[str, Any]) -> Any:
        return _run_class_code(self.name, lambda given: self.type(**given), values)


class NamedTupleForm(RecordForm):
    is_array = True

    def make(self, values: dict[str, Any]) -> Any:
        return tuple.__new__(self.type, values.values())


class TypedDictForm(RecordForm):
    """A dict with known keys, in the order it has; a key that the annotation does not have would be lost, so it is refused."""

    def dump(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise self.misfit(value)
        unknown = value.keys() - self._by_key.keys()
        if unknown:
            raise Misfit(f"the keys of {self.name}", f"also {sorted(map(repr, unknown))}", "Add them to the TypedDict, or leave them out.")
        return self._converted(value, lambda field: field.form.dump)

    def load(self, data: Any) -> dict[str, Any]:
        return self._converted(self._read_object(data), lambda field: field.form.load)

    @cached_property
    def _by_key(self) -> dict[str, Field]:
        return {field.key: field for field in self.fields}

    def _converted(self, values: dict[str, Any], convert: Callable[[Field], Callable[[Any], Any]]) -> dict[str, Any]:
        missing = [field.key for field in self.fields if field.default is MISSING and field.key not in values]
        if missing:
            raise Misfit(f"a key {missing[0]!r} of {self.name}", shown(values), "Give it, or mark it NotRequired.")
        known = self._by_key
        return {key: at(slot(key), convert(known[key]), item) for key, item in values.items() if key in known}

    def _fields_test(self, var: str, source: Source) -> str:
        known = source.bind(frozenset(field.key for field in self.fields))
        tests = [f"type({var}) is dict", f"{var}.keys() <= {known}"]
        for field in self.fields:
            present = f"{field.key!r} in {var}"
            test = field.form.test(f"{var}[{field.key!r}]", source)
            tests.append(f"{present} and {test}" if field.default is MISSING else f"(not {present} or {test})")
        return " and ".join(tests)


def _run_class_code(name: str, call: Callable[[Any], Any], value: Any) -> Any:
    try:
        return call(value)
    except Exception as error:
        raise Misfit(f"a valid {name}", f"{shown(value)} ({type(error).__name__}: {error})",
                     "Send a value that the class accepts.") from error
