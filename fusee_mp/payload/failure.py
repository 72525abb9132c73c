# Exceptions as values, and back.
#
# What survives, always: the type's name, the message, the traceback's text, notes, causes and contexts, the members of groups, and
# arguments and attributes that are plain data. The class comes back if its name leads to it; `__init__` is not called, because nobody
# knows what it wants: the state is put back as it was. Where that fails, StepFailed carries all of it, with `type_name`.
# Rule 1: describing an exception never raises, whatever the exception does when it is looked at.
# Rule 2: nothing is run that the data names, except the import of its class's module. There is no pickle.
# Rule 3: the data is bounded; what was cut says so.
from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable, Iterator
from inspect import ismemberdescriptor
from typing import Any

import msgspec
from msgspec import Struct

from fusee_mp import bounds
from fusee_mp.errors import BY_CODE, FuseeError, PayloadError, StepFailed
from fusee_mp.payload import facts
from fusee_mp.payload.classes import find, name_of, register_exception
from fusee_mp.payload.misfit import Misfit, shown

__all__ = ["Failure", "decode_failure", "encode_failure", "rebuild_failure", "register_exception", "summary"]

# Where a rebuilt exception keeps the text of the traceback that it had where it was raised.
_TRACEBACK = "__fusee_traceback__"
_ARGS: Any = vars(BaseException)["args"]  # Not `error.args`: a class may have its own idea of that name.
_UNREADABLE = "<its str() raised"
_GROUP_MEMBERS = frozenset({"message", "exceptions"})


class Failure(Struct, omit_defaults=True):
    """One exception as data. type: "module:qualified.name". args, attributes: as facts.py writes them. code: of a FuseeError.

    is_opaque: the class cannot be found by its name anywhere, so nobody rebuilds it. lost: members of a group that were not kept.
    """

    type: str
    message: str
    traceback: str = ""
    args: list[Any] = []
    attributes: dict[str, Any] = {}
    notes: list[str] = []
    cause: Failure | None = None
    context: Failure | None = None
    hides_context: bool = False
    members: list[Failure] = []
    lost: int = 0
    code: str = ""
    is_opaque: bool = False

    def text(self, indent: str = "") -> str:
        """The whole tree for people: causes and members of groups below, each a level deeper."""
        lines = [f"{self.type}: {self.message}", *self.notes, *self.traceback.rstrip().split("\n")]
        shown_lines = [indent + line for text in lines for line in text.split("\n") if line]
        for title, inner in self._inner():
            shown_lines += [f"{indent}{title}", inner.text(indent + "  ")]
        return "\n".join(shown_lines)

    def _inner(self) -> Iterator[tuple[str, Failure]]:
        for number, member in enumerate(self.members, 1):
            yield f"member {number} of {len(self.members) + self.lost}:", member
        if self.cause is not None:
            yield "caused by:", self.cause
        if self.context is not None and not self.hides_context:
            yield "raised while handling:", self.context


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Failure).decode


def encode_failure(error: BaseException) -> bytes:
    """The exception as JSON of at most FAILURE_BYTES_MAX bytes. Never raises."""
    try:
        data = _encode(_Description().of(error))
        if len(data) <= bounds.FAILURE_BYTES_MAX:
            return data
        return _encode(_Description(nodes=8, chars=bounds.FAILURE_MESSAGE_CHARS_MAX // 8, values=8).of(error))
    except Exception as trouble:
        return _encode(Failure(_type_name(error), f"<describing it raised {type(trouble).__name__}>"))


def decode_failure(data: bytes | memoryview) -> Failure:
    """The failure as data, for showing. Raises PayloadError for bytes that are none."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"failure: expected the JSON of an exception, found {shown(bytes(data[:40]))} ({error}). "
                           "The payload was altered, or is not a failure.", path="failure") from None


def rebuild_failure(data: bytes | memoryview, *, step: str = "", attempts: int = 0) -> BaseException:
    """The exception itself, of its own class where that can be rebuilt, else a StepFailed with `type_name`.

    With `step`, the exception's `__cause__` is a StepFailed that names step and attempts, whose own cause is the exception's cause.
    Raises PayloadError for bytes that are no failure.
    """
    failure = decode_failure(data)
    error = _rebuild(failure)
    if not step:
        return error
    about = {"step": step, "attempts": attempts, "type_name": failure.type}
    if isinstance(error, StepFailed) and error.fields.get("type_name") == failure.type:
        error.fields.update(about)
        return error
    wrapper = StepFailed(f'step "{step}" failed at attempt {attempts}: {summary(failure)}', **about)
    wrapper.__cause__ = error.__cause__
    error.__cause__ = wrapper
    return error


def summary(failure: Failure) -> str:
    """Type and message in one line."""
    return f"{failure.type.removeprefix('builtins:')}: {failure.message}" if failure.message else failure.type.removeprefix("builtins:")


class _Description:
    """Describes one exception and what hangs on it, within its bounds."""

    def __init__(self, nodes: int = bounds.FAILURE_NODES_MAX, chars: int = bounds.FAILURE_MESSAGE_CHARS_MAX,
                 values: int = bounds.FAILURE_VALUES_MAX) -> None:
        self._nodes = nodes
        self._chars = chars
        self._values = values
        self._seen: set[int] = set()

    def of(self, error: BaseException) -> Failure:
        self._nodes -= 1
        self._seen.add(id(error))
        kind = type(error)
        failure = Failure(_type_name(error), _cut(_message(error), self._chars), is_opaque=find(_type_name(error)) is not kind)
        failure.traceback = _cut(_traceback_text(error), 2 * self._chars)
        failure.notes = [_cut(_clean(note), self._chars) for note in _notes(error)[:self._values]]
        failure.attributes = self._attributes(error)
        failure.code = _clean(kind.code) if issubclass(kind, FuseeError) else ""
        if isinstance(error, BaseExceptionGroup):
            self._describe_members(failure, error)
        else:
            failure.args = [_bounded(arg, self._chars) for arg in _args(error)[:self._values]]
        self._describe_chain(failure, error)
        return failure

    def _describe_members(self, failure: Failure, group: BaseExceptionGroup[BaseException]) -> None:
        failure.args = [_bounded(group.message, self._chars)]
        for member in group.exceptions:
            inner = self._inner(member)
            if inner is not None:
                failure.members.append(inner)
        failure.lost = len(group.exceptions) - len(failure.members)

    def _describe_chain(self, failure: Failure, error: BaseException) -> None:
        failure.cause = self._inner(error.__cause__)
        failure.context = self._inner(error.__context__)
        failure.hides_context = bool(error.__suppress_context__)

    def _inner(self, error: BaseException | None) -> Failure | None:
        if error is None or id(error) in self._seen or self._nodes <= 0:
            return None
        return self.of(error)

    def _attributes(self, error: BaseException) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in _state(error):
            if len(found) < self._values:
                found[_clean(name)] = _bounded(value, self._chars)
        return found


def _type_name(error: BaseException) -> str:
    return _clean(name_of(type(error)))


def _message(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _clean(error.message)
    try:
        return _clean(str(error))
    except Exception as trouble:
        return f"{_UNREADABLE} {type(trouble).__name__}>"


def _traceback_text(error: BaseException) -> str:
    before = vars(error).get(_TRACEBACK, "")
    frames = traceback.extract_tb(error.__traceback__, limit=-bounds.FAILURE_FRAMES_MAX)
    return _clean(f"{before if isinstance(before, str) else ''}{''.join(frames.format())}")


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, (list, tuple)) else []


def _args(error: BaseException) -> tuple[Any, ...]:
    return tuple(_ARGS.__get__(error))


def _state(error: BaseException) -> Iterator[tuple[str, Any]]:
    """What `__init__` and others left: the attributes in `__dict__`, and those in slots, of classes in C too."""
    for name in _slots(type(error)):
        try:
            value = getattr(error, name)
        except Exception:
            continue  # Unset, or guarded: there is nothing to keep.
        if value is not None:
            yield name, value
    for name, value in list(vars(error).items()):
        if name not in (_TRACEBACK, "__notes__") and isinstance(name, str):
            yield name, value


def _slots(kind: type) -> list[str]:
    hidden = _GROUP_MEMBERS if issubclass(kind, BaseExceptionGroup) else frozenset[str]()
    return [name for base in kind.__mro__ for name, member in vars(base).items()
            if ismemberdescriptor(member) and not name.startswith("__") and name not in hidden]


def _bounded(value: Any, chars: int) -> Any:
    if type(value) is str:
        return _cut(_clean(value), chars)
    if facts.is_large(value, bounds.FAILURE_VALUE_BYTES_MAX):  # an exception may carry a data set: do not go through it
        return {"$type": "repr", "value": reprlib.repr(value)}
    data = facts.dump(value)
    return data if facts.size_of(data) <= bounds.FAILURE_VALUE_BYTES_MAX else {"$type": "repr", "value": shown(value)}


def _clean(text: Any) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode()


def _cut(text: str, chars: int) -> str:
    """The text, or its beginning and end with the number of characters between them that are missing."""
    if len(text) <= chars:
        return text
    return f"{text[:chars // 2]}\n[{len(text) - chars:,} characters cut]\n{text[-(chars // 2):]}"


def _rebuild(failure: Failure) -> BaseException:
    error = _of_its_class(failure) or _generic(failure)
    error.__cause__ = None if failure.cause is None else _rebuild(failure.cause)
    error.__context__ = None if failure.context is None else _rebuild(failure.context)
    error.__suppress_context__ = failure.hides_context
    for note in failure.notes:
        error.add_note(note)
    if failure.traceback:
        vars(error)[_TRACEBACK] = failure.traceback
    return error


def _of_its_class(failure: Failure) -> BaseException | None:
    kind = None if failure.is_opaque else find(failure.type) or BY_CODE.get(failure.code)
    if kind is None or not issubclass(kind, BaseException):
        return None
    try:
        made = _made(kind, failure)
        _restore(made, failure.attributes)
        if not failure.message.startswith(_UNREADABLE):
            str(made)
    except Exception:
        return None  # The class refuses its own state here: another version of it, or one written in C that keeps more than Python sees.
    return made if type(made) is kind else None


def _made(kind: type[BaseException], failure: Failure) -> BaseException:
    base = next(b for b in kind.__mro__ if b.__module__ == "builtins")
    new: Callable[..., BaseException] = base.__new__
    if issubclass(kind, BaseExceptionGroup):
        return new(kind, facts.load(failure.args)[0], [_rebuild(member) for member in failure.members])
    args = tuple(facts.load(failure.args))
    made = new(kind, *args)
    try:
        # The builtin base's own, not the class's: UnicodeDecodeError and its like set their fields here.
        base.__init__(made, *args)  # type: ignore[misc]
    except TypeError:
        pass  # Arguments that the base never saw: the class gave it others.
    _ARGS.__set__(made, args)
    return made


def _restore(made: BaseException, attributes: dict[str, Any]) -> None:
    slots = set(_slots(type(made)))
    for name, data in attributes.items():
        value = facts.load(data)
        if isinstance(value, facts.Opaque):
            continue
        if name in slots:
            _set_slot(made, name, value)
        else:
            vars(made)[name] = value
    if isinstance(made, FuseeError):
        vars(made).setdefault("fields", {})


def _set_slot(made: BaseException, name: str, value: Any) -> None:
    try:
        object.__setattr__(made, name, value)
    except (AttributeError, TypeError):
        pass  # Read-only in this class: it was set while it was made.


def _generic(failure: Failure) -> StepFailed:
    error = StepFailed(summary(failure), type_name=failure.type, text=failure.message)
    for field, data in (("args", failure.args), ("attributes", failure.attributes)):
        try:
            error.fields[field] = facts.load(data)
        except Misfit:
            error.fields[field] = data
    if failure.members:
        error.fields["members"] = [summary(member) for member in failure.members]
    return error
