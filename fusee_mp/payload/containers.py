"""Forms of lists, sets, tuples, dicts and unions."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from fusee_mp.payload.forms import Form, Source, at, each, slot
from fusee_mp.payload.misfit import Misfit, shown


class SequenceForm(Form):
    """list, set, frozenset and tuple[X, ...]: an array."""

    kinds = frozenset({"array"})

    def __init__(self, type: type[Any], item: Form) -> None:
        self.type = type
        self.item = item
        self.name = f"{type.__name__}[{item.name}{', ...' if type is tuple else ''}]"

    def parts(self) -> Iterable[Form]:
        return (self.item,)

    def dump(self, value: Any) -> list[Any]:
        if type(value) is not self.type:
            raise self.misfit(value)
        items: Iterable[Any] = value
        return each(self.item.dump, items)

    def load(self, data: Any) -> Any:
        if type(data) is not list:
            raise self.misfit(data)
        return self.type(each(self.item.load, data))

    def test(self, var: str, source: Source) -> str:
        item = source.local()
        return f"(type({var}) is {source.bind(self.type)} and all([{self.item.test(item, source)} for {item} in {var}]))"


class TupleForm(Form):
    """A tuple of a fixed length: an array."""

    kinds = frozenset({"array"})

    def __init__(self, items: tuple[Form, ...]) -> None:
        self.items = items
        self.name = f"tuple[{', '.join(form.name for form in items) or '()'}]"

    def parts(self) -> Iterable[Form]:
        return self.items

    def dump(self, value: Any) -> list[Any]:
        if type(value) is not tuple or len(value) != len(self.items):
            raise self.misfit(value)
        return [at(f"[{i}]", form.dump, item) for i, (form, item) in enumerate(zip(self.items, value))]

    def load(self, data: Any) -> tuple[Any, ...]:
        if type(data) is not list or len(data) != len(self.items):
            raise self.misfit(data)
        return tuple(at(f"[{i}]", form.load, item) for i, (form, item) in enumerate(zip(self.items, data)))

    def test(self, var: str, source: Source) -> str:
        tests = [form.test(f"{var}[{i}]", source) for i, form in enumerate(self.items)]
        return f"({' and '.join([f'type({var}) is tuple', f'len({var}) == {len(self.items)}', *tests])})"


class DictForm(Form):
    """An object where all keys are text or all whole numbers, in their text; else an array of pairs."""

    def __init__(self, key: Form, value: Form) -> None:
        self.key = key
        self.value = value
        self.name = f"dict[{key.name}, {value.name}]"
        self.native = key.native and key.kinds in ({"string"}, {"int"})
        self.kinds = frozenset({"object" if self.native else "array"})

    def parts(self) -> Iterable[Form]:
        return (self.key, self.value)

    def dump(self, value: Any) -> Any:
        if type(value) is not dict:
            raise self.misfit(value)
        pairs = [[at(f" key {shown(key)}", self.key.dump, key), at(slot(key), self.value.dump, item)] for key, item in value.items()]
        return {str(key): item for key, item in pairs} if self.native else pairs

    def load(self, data: Any) -> Any:
        if type(data) is not (dict if self.native else list):
            raise self.misfit(data)
        pairs: Iterable[tuple[Any, Any]] = data.items() if type(data) is dict else each(_pair, data)
        return {at(f" key {shown(key)}", self._load_key, key): at(slot(key), self.value.load, item) for key, item in pairs}

    def _load_key(self, key: Any) -> Any:
        if self.native and self.key.kinds == {"int"}:
            try:
                key = msgspec.convert(key, int, strict=False)
            except msgspec.ValidationError:
                raise Misfit("a key that is a whole number", shown(key), "Correct the key.") from None
        return self.key.load(key)

    def test(self, var: str, source: Source) -> str:
        key, item = source.local(), source.local()
        both = f"{self.key.test(key, source)} and {self.value.test(item, source)}"
        return f"(type({var}) is dict and all([{both} for {key}, {item} in {var}.items()]))"


def _pair(data: Any) -> tuple[Any, Any]:
    if type(data) is not list or len(data) != 2:
        raise Misfit("a pair of key and value", shown(data), "Write a dict with such keys as an array of pairs.")
    return data[0], data[1]


class UnionForm(Form):
    """One of several types.

    Where the JSON kind tells the members apart, a value is written as it is. Members that share a kind are written with their type's
    name, {"$type": .., "value": ..}, and are read without it too, by the first that fits: a type may become one of a union later.
    """

    def __init__(self, members: list[Form]) -> None:
        # Whole numbers are refused by nobody but welcome to floats; so they are tried as int first.
        self.members = sorted(members, key=lambda form: "float" in form.kinds)
        self.name = " or ".join(form.name for form in self.members)
        self.kinds: frozenset[str] = frozenset().union(*(form.kinds for form in members))
        clashing = _clashing(self.members)
        self.native = not clashing
        self._tags = {id(form): tag for form, tag in zip(clashing, _distinct(clashing))}
        self._by_tag = {self._tags[id(form)]: form for form in clashing}

    def parts(self) -> Iterable[Form]:
        return self.members

    def dump(self, value: Any) -> Any:
        form, data = self._first("dump", value)
        tag = self._tags.get(id(form))
        return data if tag is None else {"$type": tag, "value": data}

    def load(self, data: Any) -> Any:
        if not self.native and type(data) is dict and set(data) == {"$type", "value"}:
            form = self._by_tag.get(data["$type"])
            if form is None:
                raise Misfit(self.name, f'a value of type "{data["$type"]}"', "Keep types that are in journals as members.")
            return form.load(data["value"])
        return self._first("load", data)[1]

    def _first(self, direction: str, value: Any) -> tuple[Form, Any]:
        deepest: Misfit | None = None
        for form in self.members:
            convert: Callable[[Any], Any] = getattr(form, direction)
            try:
                return form, convert(value)
            except Misfit as misfit:
                if deepest is None or len(misfit.path) > len(deepest.path):
                    deepest = misfit
        if deepest is not None and deepest.path:
            raise deepest
        raise self.misfit(value)

    def test(self, var: str, source: Source) -> str:
        return f"({' or '.join(form.test(var, source) for form in self.members)})"


class LinkForm(Form):
    """A named alias of another form, which it may be a part of."""

    target: Form

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return self.target.kinds

    def parts(self) -> Iterable[Form]:
        return (self.target,)

    def dump(self, value: Any) -> Any:
        return self.target.dump(value)

    def load(self, data: Any) -> Any:
        return self.target.load(data)

    def test(self, var: str, source: Source) -> str:
        return f"{source.function(self, lambda v: self.target.test(v, source))}({var})"


def _clashing(members: list[Form]) -> list[Form]:
    """The members that need a tag: those that share a kind, and then all objects, so that no plain one looks like a tagged one."""
    clashing = [a for a in members if any(a is not b and a.kinds & b.kinds for b in members)]
    if all(form.tag is not None for form in clashing):
        return []
    return [form for form in members if form in clashing or "object" in form.kinds]


def _distinct(forms: list[Form]) -> list[str]:
    """A tag for each: its name, with a number where two have the same one."""
    seen: dict[str, int] = {}
    tags = []
    for form in forms:
        seen[form.name] = seen.get(form.name, 0) + 1
        tags.append(form.name if seen[form.name] == 1 else f"{form.name}#{seen[form.name]}")
    return tags
