# What a workflow may ask for.
#
# `Ctx` is the contract between workflow code and the runtime that drives it: users annotate with it, the runtime implements it, and a
# unit test may implement it too (`checkout.fn(my_ctx, order)`). Every operation is `async def`: it begins, and takes its place in the
# journal, when it is first awaited or made a task.
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from logging import Logger, LoggerAdapter
from random import Random
from typing import Any, Generic, NoReturn, overload
from uuid import UUID

from typing_extensions import TypeForm, TypeVar, TypeVarTuple

from fusee_mp.duration import Duration
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.handles import Query, Receives, Sends, Update
from fusee_mp.sdk.options import Pool
from fusee_mp.sdk.retry import Retry
from fusee_mp.sdk.types import Close

A = TypeVar("A")
I = TypeVar("I")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ChildHandle(ABC, Generic[R_co]):
    """A child that was started."""

    id: str

    @abstractmethod
    async def result(self) -> R_co:
        """The child's result. Raises ChildFailed, with how it ended as its cause, when there is none."""


class Ctx(ABC):
    """A run's view of itself and its door to the outside.

    run_number: rises within its shard. scheduled_at: the instant of the schedule that started the run, in its zone, else None.
    journal_size: records so far. is_replaying: the code is being fed what it has seen before. log: silent while replaying.
    """

    workflow_id: str
    run_number: int
    scheduled_at: datetime | None
    journal_size: int
    is_replaying: bool
    log: LoggerAdapter[Logger]

    @overload
    async def step(self, name: str, fn: Callable[[*Ts], Awaitable[R]], *args: *Ts, retry: Retry | None = None,
                   timeout: Duration | None = None, total_timeout: Duration | None = None, heartbeat_timeout: Duration | None = None,
                   limit: str | None = None, priority: int = 0, fairness: str = "", weight: int = 1, pool: Pool | None = None) -> R: ...
    @overload
    async def step(self, name: str, fn: Callable[[*Ts], R], *args: *Ts, retry: Retry | None = None,
                   timeout: Duration | None = None, total_timeout: Duration | None = None, heartbeat_timeout: Duration | None = None,
                   limit: str | None = None, priority: int = 0, fairness: str = "", weight: int = 1, pool: Pool | None = None) -> R: ...
    @abstractmethod  # type: ignore[misc]  # mypy does not see that `*args: Any` accepts every `*Ts`.
    async def step(self, name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run `fn(*args)` once and return its recorded outcome; names may repeat. Raises what the last attempt raised."""

    @abstractmethod
    async def sleep(self, duration: Duration, name: str | None = None) -> None:
        """Wait for a durable timer."""

    @overload
    async def wait_for(self, signal: Receives[A]) -> A: ...
    @overload
    async def wait_for(self, signal: Receives[A], timeout: Duration | None) -> A | None: ...
    @overload
    async def wait_for(self, signal: Receives[A], timeout: Duration | None, default: T) -> A | T: ...
    @overload
    async def wait_for(self, signal: str, timeout: Duration | None = None, default: object = None) -> Any: ...
    @abstractmethod
    async def wait_for(self, signal: Any, timeout: Duration | None = None, default: Any = None) -> Any:
        """The next signal of that name, buffered ones first, or `default` on timeout; `timeout=0` looks without waiting."""

    @abstractmethod
    async def wait_until(self, condition: Callable[[], bool], timeout: Duration | None = None) -> bool:
        """Wait until the condition holds, asked again after each change of state; False on timeout."""

    @overload
    async def child(self, workflow: Workflow[None, R], id: str, input: None = None, *, close: Close = "terminate",
                    timeout: Duration | None = None) -> R: ...
    @overload
    async def child(self, workflow: Workflow[I, R], id: str, input: I, *, close: Close = "terminate",
                    timeout: Duration | None = None) -> R: ...
    @overload
    async def child(self, workflow: str, id: str, input: object = None, *, close: Close = "terminate",
                    timeout: Duration | None = None) -> Any: ...
    @abstractmethod
    async def child(self, workflow: Any, id: str, input: Any = None, *, close: Close = "terminate", timeout: Duration | None = None) -> Any:
        """Start a child and return its result. Cancelling the await acts on the child as `close` says. Raises ChildFailed."""

    @overload
    async def start_child(self, workflow: Workflow[None, R], id: str, input: None = None, *, close: Close = "terminate",
                          timeout: Duration | None = None) -> ChildHandle[R]: ...
    @overload
    async def start_child(self, workflow: Workflow[I, R], id: str, input: I, *, close: Close = "terminate",
                          timeout: Duration | None = None) -> ChildHandle[R]: ...
    @overload
    async def start_child(self, workflow: str, id: str, input: object = None, *, close: Close = "terminate",
                          timeout: Duration | None = None) -> ChildHandle[Any]: ...
    @abstractmethod
    async def start_child(self, workflow: Any, id: str, input: Any = None, *, close: Close = "terminate",
                          timeout: Duration | None = None) -> ChildHandle[Any]:
        """Start a child, without waiting for its result."""

    @abstractmethod
    async def all(self, awaitables: Iterable[Awaitable[T]], limit: int | None = None) -> list[T]:
        """The results in order, at most `limit` at once. The first failure cancels the rest and awaits their clean-up."""

    @overload
    async def signal(self, id: str, signal: Sends[None], value: None = None) -> None: ...
    @overload
    async def signal(self, id: str, signal: Sends[A], value: A) -> None: ...
    @overload
    async def signal(self, id: str, signal: str, value: object = None) -> None: ...
    @abstractmethod
    async def signal(self, id: str, signal: Any, value: Any = None) -> None:
        """Send a signal to another workflow. Durable; a missing target is reported to the log, not awaited."""

    @abstractmethod
    async def cancel(self, id: str, reason: str = "") -> None:
        """Ask another workflow to end. Durable; a missing target is reported to the log, not awaited."""

    @overload
    def on_query(self, query: Query[None, R], fn: Callable[[], R]) -> None: ...
    @overload
    def on_query(self, query: Query[A, R], fn: Callable[[A], R]) -> None: ...
    @overload
    def on_query(self, query: str, fn: Callable[..., Any]) -> None: ...
    @abstractmethod
    def on_query(self, query: Any, fn: Callable[..., Any]) -> None:
        """Answer this query from now on, also after the end. The function changes nothing and calls no operation."""

    @overload
    def on_update(self, update: Update[None, R], handler: Callable[[], Awaitable[R]],
                  validator: Callable[[], None] | None = None) -> None: ...
    @overload
    def on_update(self, update: Update[A, R], handler: Callable[[A], Awaitable[R]],
                  validator: Callable[[A], None] | None = None) -> None: ...
    @overload
    def on_update(self, update: Update[A, R], handler: Callable[[A], R], validator: Callable[[A], None] | None = None) -> None: ...
    @overload
    def on_update(self, update: str, handler: Callable[..., Any], validator: Callable[..., None] | None = None) -> None: ...
    @abstractmethod
    def on_update(self, update: Any, handler: Callable[..., Any], validator: Callable[..., None] | None = None) -> None:
        """Handle this update from now on; any exception of the validator is the refusal. Register before the first await: updates
        are held until then. The run does not end before the updates that it accepted have."""

    @overload
    async def completion(self, name: str, send: Callable[[str], Any], *, timeout: Duration | None = None,
                         retry: Retry | None = None) -> Any: ...
    @overload
    async def completion(self, name: str, send: Callable[[str], Any], *, returns: type[T], timeout: Duration | None = None,
                         retry: Retry | None = None) -> T: ...
    @overload
    async def completion(self, name: str, send: Callable[[str], Any], *, returns: TypeForm[T], timeout: Duration | None = None,
                         retry: Retry | None = None) -> T: ...
    @abstractmethod
    async def completion(self, name: str, send: Callable[[str], Any], *, returns: Any = Any, timeout: Duration | None = None,
                         retry: Retry | None = None) -> Any:
        """Run `send(token)` as a step, then wait until somebody calls `complete(token, value)` or `fail(token, error)`.

        Each attempt to send has a token of its own, which makes the one before useless. timeout: of the whole; then the builtin
        TimeoutError is raised. Raises what `fail` was given, or what the last attempt to send raised.
        """

    @abstractmethod
    def set_attributes(self, mapping: Mapping[str, Any] | None = None, **attributes: Any) -> None:
        """Merge these search attributes into the run's."""

    @abstractmethod
    def patched(self, name: str) -> bool:
        """True in runs that come to this change of the code first now; False in those that went past it before. The same in replay."""

    @overload
    async def continue_as_new(self, workflow: Workflow[None, Any], input: None = None) -> NoReturn: ...
    @overload
    async def continue_as_new(self, workflow: Workflow[I, Any], input: I) -> NoReturn: ...
    @abstractmethod
    async def continue_as_new(self, workflow: Any, input: Any = None) -> NoReturn:
        """End this run and start a fresh one under the same ID, which takes over what was not taken: signals, children, questions.

        It leaves the code by an exception that `except Exception` does not meet. Raises Rejected in the handler of an update.
        """

    @abstractmethod
    def now(self) -> datetime:
        """The instant of the last record handed over, aware, in UTC. The same in replay."""

    @abstractmethod
    def random(self) -> Random:
        """The run's own generator; the same draws in replay."""

    @abstractmethod
    def uuid4(self) -> UUID:
        """A UUID that is the same in replay."""
