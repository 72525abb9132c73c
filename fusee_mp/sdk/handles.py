# Typed names of what a workflow can be sent.
#
# A handle is a plain value made apart from any engine: clients import it without the workflow's code. It says what travels: the type
# of the value and of the answer. Each handle has two faces, so that the type checker can be right about variance: who receives or
# answers may be handed a wider handle, who sends or asks a narrower one.
from __future__ import annotations

from typing import Any, Generic, overload

from typing_extensions import TypeForm, TypeVar

from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec, codec_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _Handle:
    """A name and what travels under it; equal handles are interchangeable."""

    __slots__ = ("name", "returns", "type")
    kind = "handle"

    def __init__(self, name: str, type: Any, returns: Any = None) -> None:
        self.name = checked_name(self.kind, name)
        self.type = type
        self.returns = returns

    @property
    def codec(self) -> Codec:
        """Carries the value that is sent."""
        return codec_of(self.type)

    @property
    def returns_codec(self) -> Codec:
        """Carries the answer."""
        return codec_of(self.returns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Handle):
            return NotImplemented
        return (self.kind, self.name, self.type, self.returns) == (other.kind, other.name, other.type, other.returns)

    def __hash__(self) -> int:
        return hash((self.kind, self.name))

    def __repr__(self) -> str:
        shown = [f'"{self.name}"'] + ([_type_name(self.type)] if self.type is not None else [])
        return f"{self.kind}({', '.join(shown)}{f', returns={_type_name(self.returns)}' if self.returns is not None else ''})"


class Receives(_Handle, Generic[T_co]):
    """The face of a signal that a workflow waits for."""

    __slots__ = ()


class Sends(_Handle, Generic[A_contra]):
    """The face of a signal that others send."""

    __slots__ = ()


class Signal(Receives[A], Sends[A], Generic[A]):
    """A message to a run. It is buffered until the run waits for its name; nothing is answered."""

    __slots__ = ()
    kind = "signal"


class Asks(_Handle, Generic[A_contra, R_co]):
    """The face of a query that others ask."""

    __slots__ = ()


class Query(Asks[A, R], Generic[A, R]):
    """A question to a run. It changes nothing and is not recorded."""

    __slots__ = ()
    kind = "query"


class Changes(_Handle, Generic[A_contra, R_co]):
    """The face of an update that others send."""

    __slots__ = ()


class Update(Changes[A, R], Generic[A, R]):
    """A recorded change of a run, with an answer; a validator may refuse it before it is recorded."""

    __slots__ = ()
    kind = "update"


def _type_name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


@overload
def signal(name: str) -> Signal[None]: ...
@overload
def signal(name: str, type: type[T]) -> Signal[T]: ...
@overload
def signal(name: str, type: TypeForm[T]) -> Signal[T]: ...
def signal(name: str, type: Any = None) -> Signal[Any]:
    """A signal of this name and type; without a type it carries no value. Raises Rejected for a name that cannot be one."""
    return Signal(name, type)


@overload
def query(name: str, *, returns: type[R]) -> Query[None, R]: ...
@overload
def query(name: str, type: type[A], *, returns: type[R]) -> Query[A, R]: ...
@overload
def query(name: str, *, returns: TypeForm[R]) -> Query[None, R]: ...
@overload
def query(name: str, type: TypeForm[A], *, returns: TypeForm[R]) -> Query[A, R]: ...
def query(name: str, type: Any = None, *, returns: Any) -> Query[Any, Any]:
    """A query of this name; `type` is that of its argument, `returns` that of its answer. Raises Rejected for a bad name."""
    return Query(name, type, returns)


@overload
def update(name: str, type: type[A], *, returns: type[R]) -> Update[A, R]: ...
@overload
def update(name: str, *, returns: TypeForm[R]) -> Update[None, R]: ...
@overload
def update(name: str, type: TypeForm[A], *, returns: TypeForm[R]) -> Update[A, R]: ...
def update(name: str, type: Any = None, *, returns: Any) -> Update[Any, Any]:
    """An update of this name; `type` is that of its value, `returns` that of its answer. Raises Rejected for a bad name."""
    return Update(name, type, returns)
