"""A loop stays awake for a moment after each start, and sleeps again by itself."""
from __future__ import annotations

import asyncio

from fusee_mp.bounds import AWAKE_PAUSE_S, AWAKE_ROUND
from fusee_mp.wire.spin import Spin


def turns_of(until_stopped: bool) -> tuple[int, int]:
    """Turns of a clock that moves by one at each look: while it spins, and in the next turns of the loop."""
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return float(looks)

    async def main() -> tuple[int, int]:
        spin = Spin(asyncio.get_running_loop(), 5.0, clock)
        spin.start()
        spin.start()
        if until_stopped:
            spin.stop()
        for _ in range(20):
            await asyncio.sleep(0)
        spun = looks
        for _ in range(20):
            await asyncio.sleep(0)
        return spun, looks - spun

    return asyncio.run(main())


def test_it_turns_for_its_time_and_no_longer() -> None:
    spun, later = turns_of(until_stopped=False)
    assert 5 < spun < 12 and later == 0


def test_it_stops_when_what_it_waited_for_has_come() -> None:
    assert turns_of(until_stopped=True) == (3, 0)


def test_it_pauses_where_answers_come_too_late_and_comes_back() -> None:
    now = 0.0

    async def spins(answer_after: float) -> bool:
        """Whether a start keeps the loop turning."""
        nonlocal now
        spin.start()
        turned = spin._is_turning
        now += answer_after
        if answer_after < 0.00005:
            spin.stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return turned

    async def main() -> None:
        nonlocal now
        for _ in range(2 * AWAKE_ROUND):
            assert await spins(0.00001)
        late = [await spins(0.00006) for _ in range(AWAKE_ROUND)]
        assert late.count(True) == AWAKE_ROUND // 4 + 1
        now += AWAKE_PAUSE_S
        assert await spins(0.00001)

    async def whole() -> None:
        nonlocal spin
        spin = Spin(asyncio.get_running_loop(), 0.00005, lambda: now)
        await main()

    spin: Spin
    asyncio.run(whole())
