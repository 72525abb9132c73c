"""The journals of chains and of reset runs replay, from any record on."""
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from behaviour_life import ADD, CALLS, GO, LIFE, STOP, called
from behaviour_places import Place, run, until

from fusee_mp import Replayer, export
from fusee_mp.testing.crashes import crash_everywhere

W = LIFE
ALL = [*LIFE.values()]


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


def test_journals_of_chains_and_resets_replay_from_any_record_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with Place(tmp_path / "data").engine(ALL, shards=2) as engine:
            chain = await engine.start(W["counts_in_a_chain"], "chain", 0)
            await asyncio.gather(*(chain.signal(GO, n) for n in range(5)))
            await chain.signal(GO, -1)
            family = await engine.start(W["hands_on_children"], "family", 0)
            for name in ("terminate", "cancel", "abandon", "asked", "early"):
                await engine.handle(f"family/{name}").started()
            await family.signal(STOP)
            for name in ("asked", "early"):
                await engine.handle(f"family/{name}").signal(GO, 1)
                await engine.handle(f"family/{name}").result()
            for _ in range(2):
                await family.signal(STOP)
            adding = await engine.start(W["adds_in_a_chain"], "adding", 0)
            await asyncio.gather(*(adding.update(ADD, 3) for _ in range(4)))
            steps = await engine.start(W["three_steps"], "steps")
            await until(lambda: called("two"))
            await steps.reset("two")
            await steps.signal(GO, 1)
            for each in (chain, family, adding, steps):
                await each.result()
        journals = export(tmp_path / "data", limit=None)
        ends = {journal.done.status for journal in journals if journal.done}
        assert ends >= {"ok", "continued_as_new", "reset", "terminated", "cancelled"}
        replayer = Replayer(workflows=ALL)
        assert [replayer.replay(journal).error for journal in journals] == [None] * len(journals)
        assert crash_everywhere(ALL, journals) == []

    run(main())
