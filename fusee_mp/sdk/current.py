"""What a step body can see of itself."""
from __future__ import annotations

from uuid import uuid4

from fusee_mp.runtime.steps import CURRENT


class CurrentStep:
    """The attempt that a step body runs in.

    key: the idempotency key, `<workflow id>/<run number>/..`: equal for all attempts of this step, different for every other.
    attempt: counts from 1.
    """

    __slots__ = ("attempt", "key")

    def __init__(self, key: str, attempt: int) -> None:
        self.key = key
        self.attempt = attempt


def current_step() -> CurrentStep:
    """The attempt this code runs in. Outside a step a stand-in with a random key, so that step functions can be unit-tested."""
    call = CURRENT.get()
    if call is None:
        return CurrentStep(f"no-step/0/{uuid4()}", 1)
    return CurrentStep(call.key, call.attempt)
