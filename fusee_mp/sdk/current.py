"""What a step body can see and say of itself."""
from __future__ import annotations

from typing import Any, TypeVar, overload
from uuid import uuid4

from typing_extensions import TypeForm

from fusee_mp.bounds import PAYLOAD_BYTES_MAX
from fusee_mp.payload.converter import codec_of
from fusee_mp.runtime.steps import CURRENT, Body
from fusee_mp.sdk.target import ANY

T = TypeVar("T")


class CurrentStep:
    """The attempt that a step body runs in.

    key: the idempotency key, `<workflow id>/<run number>/..`: equal for all attempts of this step, different for every other.
    attempt: counts from 1.
    """

    __slots__ = ("attempt", "key", "_body", "_generation")

    def __init__(self, key: str, attempt: int, body: Body | None = None, generation: int = 0) -> None:
        self.key = key
        self.attempt = attempt
        self._body = body
        self._generation = generation

    def heartbeat(self, value: object = None) -> None:
        """Report progress: the next attempt gets the newest value from `progress`, also after a crash, and `describe` shows it.

        From any thread. Recorded at most every 100 ms; the newest value counts. It also keeps the step's `heartbeat_timeout` from
        passing. After the attempt has ended it does nothing. Raises PayloadError for a value that cannot be carried.
        """
        body = self._body
        payload = ANY.encode(value, "the value of heartbeat", PAYLOAD_BYTES_MAX if body is None else body.bytes_max)
        if body is not None:
            body.report(self._generation, payload)

    @overload
    def progress(self) -> Any: ...
    @overload
    def progress(self, type: TypeForm[T]) -> T | None: ...
    def progress(self, type: Any = Any) -> Any:
        """What the attempts before this one last recorded, of the given type, or None. Raises PayloadError when it does not fit."""
        payload = None if self._body is None else self._body.progress
        return None if payload is None else codec_of(type).decode(payload, "the progress of the last attempt")


def current_step() -> CurrentStep:
    """The attempt this code runs in. Outside a step a stand-in with a random key, so that step functions can be unit-tested."""
    current = CURRENT.get()
    if current is None:
        return CurrentStep(f"no-step/0/{uuid4()}", 1)
    body, generation, attempt = current
    return CurrentStep(body.key, attempt, body, generation)
