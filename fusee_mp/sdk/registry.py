"""The workflows that an engine or a worker has, by name."""
from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from fusee_mp.errors import Rejected
from fusee_mp.runtime.run import Run
from fusee_mp.sdk.context import RunCtx
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.looking import looking


class RegisteredWorkflow:
    """A definition as the runtime uses it."""

    __slots__ = ("definition", "name", "version", "on_exhausted", "retention_ms")

    def __init__(self, definition: Workflow[Any, Any], on_exhausted: str) -> None:
        self.definition = definition
        self.name = definition.name
        self.version = definition.version
        self.retention_ms = definition.retention_ms
        self.on_exhausted = definition.on_exhausted or on_exhausted

    def context(self, run: Run) -> RunCtx:
        return RunCtx(run)

    def call(self, context: RunCtx, input: bytes) -> Coroutine[Any, Any, Any]:
        definition = self.definition
        value = definition.input_codec.decode(input)
        return definition.fn(context, value) if definition.takes_input else definition.fn(context)

    def looking(self, context: RunCtx, what: str) -> AbstractContextManager[None]:
        return looking(context, what)

    def encode_result(self, value: Any, bytes_max: int) -> bytes:
        return self.definition.result_codec.encode(value, f'the result of workflow "{self.name}"', bytes_max)


class WorkflowRegistry:
    """on_exhausted: of workflows that say nothing of it. Raises Rejected when two definitions share a name, or something is no workflow."""

    def __init__(self, workflows: Iterable[Workflow[Any, Any]], on_exhausted: str = "fail") -> None:
        self._by_name: dict[str, RegisteredWorkflow] = {}
        self.elsewhere: frozenset[str] = frozenset()  # what other workers of the server have
        for definition in workflows:
            if not isinstance(definition, Workflow):
                raise Rejected(f"workflows=[..] takes what @workflow made, not {definition!r}: decorate it, or take it out")
            other = self._by_name.get(definition.name)
            if other is not None and other.definition is not definition:
                raise Rejected(f'two workflows are named "{definition.name}": give one of them another name with @workflow("..")')
            self._by_name[definition.name] = RegisteredWorkflow(definition, on_exhausted)

    def get(self, name: str) -> RegisteredWorkflow | None:
        return self._by_name.get(name)

    def is_elsewhere(self, name: str) -> bool:
        return name not in self._by_name and name in self.elsewhere

    def names(self) -> str:
        return ", ".join(sorted(self._by_name)) or "none"

    def all_names(self) -> str:
        return ", ".join(sorted(self.elsewhere.union(self._by_name))) or "none"

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)
