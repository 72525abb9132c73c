"""From an annotation to its form. The table of what the converter knows."""
from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any, TypeAlias, get_args, get_origin

import msgspec
import typing_extensions

from fusee_mp.payload import hints, records
from fusee_mp.payload.containers import DictForm, LinkForm, SequenceForm, TupleForm, UnionForm
from fusee_mp.payload.forms import ANY, BOOL, FLOAT, INT, NONE, STR, Form, NoneType
from fusee_mp.payload.records import MISSING, Field
from fusee_mp.payload.scalars import (
    TEXT_TYPES,
    ConstrainedForm,
    DatetimeForm,
    EnumForm,
    FlagForm,
    ForeignForm,
    LiteralForm,
    NoForm,
    PathForm,
    TextForm,
)

_Made: TypeAlias = tuple[Form, Callable[[dict[str, Any]], Iterable[Field]] | None]

_SIMPLE: dict[Any, Form] = {
    Any: ANY, typing_extensions.Any: ANY, object: ANY, None: NONE, NoneType: NONE, bool: BOOL, int: INT, float: FLOAT, str: STR,
    **{kind: TextForm(kind) for kind in TEXT_TYPES}, datetime: DatetimeForm(),
}
_LISTS = {list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable}
_SETS = {set: set, abc.MutableSet: set, abc.Set: set, frozenset: frozenset}
_DICTS = {dict, abc.Mapping, abc.MutableMapping}
_WRAPPERS = {typing.Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.ReadOnly,
             typing.Final, typing.ClassVar, dataclasses.InitVar}
_LITERALS = {typing.Literal, typing_extensions.Literal}


class Builder:
    """Makes the form of one annotation, and of all that it is made of. scope: names of the function around local classes."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope
        self._records: dict[Any, Form] = {}

    def form(self, tp: Any) -> Form:
        origin = get_origin(tp)
        if origin is None:
            return self._bare(tp)
        if origin is typing.Annotated:
            return self._annotated(tp)
        if origin in _WRAPPERS:
            return self.form(get_args(tp)[0])
        if origin in (typing.Union, types.UnionType):
            return self._union(get_args(tp))
        if origin in _LITERALS:
            return self._literal(get_args(tp))
        if isinstance(origin, typing_extensions.TypeAliasType):
            return self.form(origin.__value__[get_args(tp)])
        return self._container(origin, get_args(tp)) or self._class(origin, tp)

    def _bare(self, tp: Any) -> Form:
        if isinstance(tp, (str, typing.ForwardRef)):
            raise NameError(f"{tp!r} is text that nothing here resolves")
        if isinstance(tp, typing.TypeVar):
            return self.form(tp.__bound__ if tp.__bound__ is not None else Any)
        if isinstance(tp, typing.NewType):
            return self.form(tp.__supertype__)
        if isinstance(tp, typing_extensions.TypeAliasType) or type(tp).__name__ == "TypeAliasType":
            return self._alias(tp)
        if tp is None or isinstance(tp, type) or tp in _SIMPLE:
            return _SIMPLE.get(tp) or self._container(tp, ()) or self._class(tp, tp)
        return NoForm(tp)

    def _alias(self, tp: Any) -> Form:
        """An alias may name itself, as one for all of JSON does."""
        if tp not in self._records:
            link = self._records[tp] = LinkForm(tp.__name__)
            link.target = self.form(tp.__value__)
        return self._records[tp]

    def _annotated(self, tp: Any) -> Form:
        form = self.form(get_args(tp)[0])
        if any(isinstance(extra, msgspec.Meta) for extra in get_args(tp)[1:]):
            return ConstrainedForm(form, tp)
        return form

    def _union(self, members: Iterable[Any]) -> Form:
        forms = [self.form(member) for member in members]
        return ANY if ANY in forms else UnionForm(forms)

    def _literal(self, values: tuple[Any, ...]) -> Form:
        return LiteralForm(values, {type(value): self.form(type(value)) for value in values})

    def _container(self, origin: Any, args: tuple[Any, ...]) -> Form | None:
        if origin in _LISTS:
            return SequenceForm(list, self._argument(args, 0))
        if origin in _SETS:
            return SequenceForm(_SETS[origin], self._argument(args, 0))
        if origin is tuple:
            return self._tuple(args)
        if origin in _DICTS:
            return DictForm(self._argument(args, 0) if args else STR, self._argument(args, 1))
        return None

    def _argument(self, args: tuple[Any, ...], index: int) -> Form:
        return self.form(args[index]) if args else ANY

    def _tuple(self, args: tuple[Any, ...]) -> Form:
        if not args or args[-1] is Ellipsis:
            return SequenceForm(tuple, self._argument(args, 0))
        return TupleForm(tuple(self.form(item) for item in args if item != ()))

    def _class(self, cls: Any, tp: Any) -> Form:
        known = self._records.get(tp)
        if known is not None:
            return known
        form, fields = self._make(cls, tp)
        self._records[tp] = form
        if fields is not None and isinstance(form, records.RecordForm):
            form.fill(fields(hints.field_types(tp, self._scope)))
        return form

    def _make(self, cls: Any, tp: Any) -> _Made:
        """The form and, of a record, what gives its fields from their types: later, because they may name the class itself."""
        if not isinstance(cls, type):
            return NoForm(tp), None
        if issubclass(cls, enum.Enum):
            return (FlagForm(cls) if issubclass(cls, enum.Flag) else EnumForm(cls)), None
        if issubclass(cls, PurePath):
            return PathForm(cls), None
        if issubclass(cls, msgspec.Struct):
            return records.StructForm(cls), lambda types: self._struct_fields(cls, types)
        if dataclasses.is_dataclass(cls):
            return self._dataclass(cls)
        if hasattr(cls, "__attrs_attrs__"):
            return self._attrs(cls)
        if typing_extensions.is_typeddict(cls):
            return records.TypedDictForm(cls), lambda types: self._typed_dict_fields(cls, types)
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return records.NamedTupleForm(cls), lambda types: self._named_tuple_fields(cls, types)
        return _pydantic(cls) or NoForm(tp), None

    def _dataclass(self, cls: Any) -> _Made:
        fields = dataclasses.fields(cls)
        has_own_init = bool(set(inspect.signature(cls).parameters) - {field.name for field in fields})
        finish = getattr(cls, "__post_init__", None)
        form = records.ObjectForm(cls, None if has_own_init else finish, not has_own_init and all(f.init for f in fields))
        return form, lambda types: [Field(f.name, f.name, self.form(types.get(f.name, Any)), _default(f)) for f in fields]

    def _attrs(self, cls: Any) -> _Made:
        attributes = cls.__attrs_attrs__
        finish = _attrs_finish(cls, attributes)
        form = records.ObjectForm(cls, finish, finish is None and all(
            a.init and a.converter is None and not a.name.startswith("_") and a.alias == a.name for a in attributes))
        return form, lambda types: [Field(a.name, a.name, self.form(types.get(a.name, Any)), _attrs_default(a)) for a in attributes]

    def _struct_fields(self, cls: Any, types: dict[str, Any]) -> Iterable[Field]:
        for field in msgspec.structs.fields(cls):
            default: Any = MISSING
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory
            elif field.default is not msgspec.NODEFAULT:
                default = _constant(field.default)
            yield Field(field.name, field.encode_name, self.form(types.get(field.name, Any)), default)

    def _typed_dict_fields(self, cls: Any, types: dict[str, Any]) -> Iterable[Field]:
        for name, tp in types.items():
            yield Field(name, name, self.form(tp), MISSING if _is_required(cls, name, tp) else _constant(None))

    def _named_tuple_fields(self, cls: Any, types: dict[str, Any]) -> Iterable[Field]:
        for name in cls._fields:
            default = _constant(cls._field_defaults[name]) if name in cls._field_defaults else MISSING
            yield Field(name, name, self.form(types.get(name, Any)), default)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory
    return MISSING if field.default is MISSING else _constant(field.default)


def _attrs_default(attribute: Any) -> Any:
    nothing = sys.modules["attr"].NOTHING
    if attribute.default is nothing:
        return MISSING
    factory = getattr(attribute.default, "factory", None)
    if factory is None:
        return _constant(attribute.default)
    return MISSING if attribute.default.takes_self else factory


def _attrs_finish(cls: Any, attributes: Iterable[Any]) -> Callable[[Any], None] | None:
    post_init = getattr(cls, "__attrs_post_init__", None)
    if post_init is None and all(a.validator is None for a in attributes):
        return None

    def finish(made: Any) -> None:
        sys.modules["attr"].validate(made)
        if post_init is not None:
            post_init(made)
    return finish


def _is_required(cls: Any, name: str, tp: Any) -> bool:
    origin = get_origin(tp)
    if origin in (typing.Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired):
        return origin in (typing.Required, typing_extensions.Required)
    return name in cls.__required_keys__


def _pydantic(cls: Any) -> Form | None:
    """The form of a pydantic model; pydantic itself is looked for only among what the program has imported already."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not issubclass(cls, pydantic.BaseModel):
        return None
    kinds = ANY.kinds if issubclass(cls, pydantic.RootModel) else frozenset({"object"})
    return ForeignForm(cls, kinds, lambda value: msgspec.json.decode(value.model_dump_json(by_alias=True, round_trip=True, warnings=False)),
                       lambda data: cls.model_validate_json(msgspec.json.encode(data)))
