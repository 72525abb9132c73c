"""What the runtime asks of workflow definitions; the SDK's definitions provide it."""
from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run


class RunContext(Protocol):
    """What workflow code holds of its run."""

    def call_step(self, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]: ...
    def forget(self) -> None:
        """The run left memory: let go of it."""


class Registered(Protocol):
    """A workflow that can be run here."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def retention_ms(self) -> int | None:
        """How long ended runs of it are kept; None: as long as those of others."""
    @property
    def on_exhausted(self) -> str:
        """ "fail" or "pause": what a step that has used up its attempts does to its run."""
    def context(self, run: Run) -> RunContext: ...
    def call(self, context: Any, input: bytes) -> Coroutine[Any, Any, Any]:
        """The body, not begun. Raises PayloadError when the input does not fit."""
    def looking(self, context: Any, what: str) -> AbstractContextManager[None]:
        """While it is entered, every operation of the context raises and says that `what` only looks."""
    def encode_result(self, value: Any, bytes_max: int) -> bytes:
        """Raises PayloadError when the result cannot be carried."""


class Registry(Protocol):
    def __iter__(self) -> Iterator[str]: ...
    def get(self, name: str) -> Registered | None: ...
    def is_elsewhere(self, name: str) -> bool:
        """Not here, but another process that may get this shard has it."""
    def names(self) -> str:
        """What is registered here, for messages."""
    def all_names(self) -> str:
        """The same, and what is elsewhere."""
