# Forms: what a type looks like as JSON.
#
# Each type has one form, and the form is the reference: `dump` and `load` are written out in Python, strict, and name the field that
# does not fit. They are also slow. Most values of most types travel faster through msgspec, in the same bytes:
# Rule 1: a `native` form's JSON is what msgspec writes and reads for the type. A form that cannot promise this is not native.
# Rule 2: `test` gives an expression that holds only for values that msgspec carries exactly: they come back equal and of the same type.
#   It need not hold for all that `dump` accepts (an int where a float is annotated); such a value takes the slow way.
# Rule 3: a form that `revises` runs code of the user's class while loading; what it loads must be compared with what was dumped.
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, ClassVar

from fusee_mp.bounds import NESTING_MAX
from fusee_mp.payload.misfit import Misfit, shown

TEXT = frozenset({str})
PLAIN = frozenset({type(None), bool, int, str})
# Read by those who send a value from Python, and by those who type it at a command line.
ANNOTATE = "Give a value of that type, or annotate it in the code with the type it has."
CONVERT = "Annotate it in the code with its type, or convert it to text, numbers, lists and dicts."


class Source:
    """The names that a compiled test uses, and its functions: one for each record, so that types may refer to themselves."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._functions: dict[int, str] = {}
        self._locals = 0

    def bind(self, value: object) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def local(self) -> str:
        self._locals += 1
        return f"v{self._locals}"

    def function(self, form: Form, expression: Callable[[str], str]) -> str:
        name = self._functions.get(id(form))
        if name is None:
            name = self._functions[id(form)] = f"f{len(self._functions)}"
            # Our own text: it has the names of values, never a value.
            exec(f"def {name}(v):\n return {expression('v')}", self.names)  # noqa: S102
        return name


class Form(ABC):
    """name: for messages, and for tags of unions. kinds: the JSON kinds it writes. tag: what its objects say of themselves."""

    name: str
    kinds: frozenset[str]
    native: bool = True
    revises: bool = False
    tag: str | int | None = None

    @abstractmethod
    def dump(self, value: Any) -> Any:
        """The value as JSON builtins. Raises Misfit."""

    @abstractmethod
    def load(self, data: Any) -> Any:
        """The value from JSON builtins. Raises Misfit."""

    @abstractmethod
    def test(self, var: str, source: Source) -> str:
        """An expression over `var`, as Rule 2 says."""

    def parts(self) -> Iterable[Form]:
        return ()

    def misfit(self, found: object, advice: str = ANNOTATE) -> Misfit:
        return Misfit(self.name, shown(found), advice)


def compile_test(form: Form) -> Callable[[Any], bool]:
    """The form's test as one function."""
    source = Source()
    expression = form.test("v", source)
    exec(f"def test(v):\n return {expression}", source.names)  # noqa: S102
    test: Callable[[Any], bool] = source.names["test"]
    return test


def every(form: Form) -> list[Form]:
    """The form and all forms that it is made of, each once."""
    found: dict[int, Form] = {}
    waiting = [form]
    while waiting:
        next_form = waiting.pop()
        if id(next_form) not in found:
            found[id(next_form)] = next_form
            waiting.extend(next_form.parts())
    return list(found.values())


def each(convert: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """All items converted; a misfit is placed by its index."""
    out: list[Any] = []
    try:
        for item in items:
            out.append(convert(item))
    except Misfit as misfit:
        raise misfit.inside(f"[{len(out)}]") from None
    return out


def at(part: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """The value converted; a misfit is placed at this part of the path."""
    try:
        return convert(value)
    except Misfit as misfit:
        raise misfit.inside(part) from None


def slot(key: object) -> str:
    """A dict's key as a part of a path."""
    return f'["{key}"]' if isinstance(key, str) else f"[{shown(key).partition(' ')[2]}]"


class AnyForm(Form):
    """No annotation: only what JSON itself distinguishes, in exactly the types that reading JSON gives."""

    name = "Any"
    kinds = frozenset({"null", "bool", "int", "float", "string", "array", "object"})

    def dump(self, value: Any, depth: int = NESTING_MAX) -> Any:
        kind = type(value)
        if kind in (list, dict) and depth == 0:
            raise Misfit(f"at most {NESTING_MAX} levels of lists and dicts", f"one more {kind.__name__}", "Send it flatter, or as text.")
        if kind is list:
            return each(lambda item: self.dump(item, depth - 1), value)
        if kind is dict:
            return {self._key(key): at(slot(key), lambda item: self.dump(item, depth - 1), item) for key, item in value.items()}
        if kind is str:
            return STR.dump(value)
        if kind in PLAIN or (kind is float and math.isfinite(value)):
            return value
        raise Misfit("a value that JSON keeps as it is", shown(value), CONVERT)

    def _key(self, key: Any) -> str:
        if type(key) is not str:
            raise Misfit("keys of type str", f"the key {shown(key)}", "Annotate the dict with the type of its keys, or make them text.")
        return str(STR.dump(key))

    def load(self, data: Any) -> Any:
        return data

    def test(self, var: str, source: Source) -> str:
        return f"{source.bind(is_plain)}({var})"


def is_plain(value: Any, depth: int = NESTING_MAX) -> bool:
    kind = type(value)
    if kind is list:
        return depth > 0 and (PLAIN.issuperset(map(type, value)) or all(map(is_plain, value, repeat(depth - 1))))
    if kind is dict:
        return depth > 0 and TEXT.issuperset(map(type, value)) and (
            PLAIN.issuperset(map(type, value.values())) or all(map(is_plain, value.values(), repeat(depth - 1))))
    return kind in PLAIN or (kind is float and value - value == 0.0)


class StrForm(Form):
    name = "str"
    kinds = frozenset({"string"})

    def dump(self, value: Any) -> str:
        if type(value) is not str:
            raise self.misfit(value)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Misfit("text that UTF-8 can carry", f"{shown(value)} with a lone surrogate at position {error.start}",
                         "Decode the bytes it came from correctly, or send them as bytes.") from None
        return value

    def load(self, data: Any) -> str:
        if type(data) is not str:
            raise self.misfit(data)
        return data

    def test(self, var: str, source: Source) -> str:
        return f"type({var}) is str"


class ExactForm(Form):
    """None, bool and int: JSON carries them as they are."""

    _KINDS: ClassVar[dict[type, str]] = {type(None): "null", bool: "bool", int: "int"}

    def __init__(self, type: type) -> None:
        self.type = type
        self.name = "None" if type is NoneType else type.__name__
        self.kinds = frozenset({self._KINDS[type]})

    def dump(self, value: Any) -> Any:
        if type(value) is not self.type:
            raise self.misfit(value)
        return value

    def load(self, data: Any) -> Any:
        return self.dump(data)

    def test(self, var: str, source: Source) -> str:
        return f"{var} is None" if self.type is NoneType else f"type({var}) is {self.type.__name__}"


class FloatForm(Form):
    """A whole number is welcome where a float is annotated, and becomes one, if that changes nothing.

    JSON has no NaN and no infinities: they travel as {"$float": "nan"}, which the fast reader refuses and this one knows.
    """

    name = "float"
    kinds = frozenset({"float"})

    def dump(self, value: Any) -> Any:
        if type(value) is int:
            return self._whole(value)
        if type(value) is not float:
            raise self.misfit(value)
        return value if math.isfinite(value) else {"$float": str(value)}

    def _whole(self, value: int) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if number != value:
            raise Misfit("float", f"{shown(value)}, which no float equals", "Annotate the value as int.")
        return number

    def load(self, data: Any) -> float:
        if type(data) is dict and list(data) == ["$float"] and data["$float"] in ("nan", "inf", "-inf"):
            return float(data["$float"])
        if type(data) is int:
            return self._whole(data)
        if type(data) is not float:
            raise self.misfit(data)
        return data

    def test(self, var: str, source: Source) -> str:
        return f"(type({var}) is float and {var} - {var} == 0.0)"


NoneType = type(None)
ANY = AnyForm()
STR = StrForm()
FLOAT = FloatForm()
NONE, BOOL, INT = ExactForm(NoneType), ExactForm(bool), ExactForm(int)
