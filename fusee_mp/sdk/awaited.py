"""A handle on a run that is asked for and may not have started yet."""
from __future__ import annotations

from typing import Any, TypeVar

from fusee_mp.duration import Duration
from fusee_mp.sdk.run import Run, within

R_co = TypeVar("R_co", covariant=True)


class AwaitedRun(Run[R_co]):
    """A run that a window or a schedule will start: its result is waited for from before its start."""

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the run's start and its end. Raises as `Run.result` does, but NotFound."""
        found: R_co = await within(timeout, self._from_its_start())
        return found

    async def _from_its_start(self) -> Any:
        await self.started()
        return await super().result()
