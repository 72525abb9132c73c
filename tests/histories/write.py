"""Write the journals of this release: `python -m tests.histories.write`, once for each release, on each Python that it supports.

Those that are there stay as they are: a journal once written is what some user's directory holds.
"""
from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

import fusee_mp
from fusee_mp import FuseeError, testing
from tests.histories.workflows import GO, WORKFLOWS, cancelled, everything, small

HERE = Path(__file__).resolve().parent
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def write(folder: Path) -> None:
    async with testing.engine(workflows=WORKFLOWS, at=AT) as engine:
        for definition in WORKFLOWS:
            if definition is small:
                continue
            run = await engine.start(definition, definition.name)
            if definition is everything:
                await engine.skip("1h")
                await run.signal(GO, 7)
            if definition is cancelled:
                await engine.skip("1s")
                await run.cancel("enough")
            try:
                await run.result()
            except FuseeError as e:
                print(f"{run.id}: {type(e).__name__}")
        for journal in await engine.journals():
            path = folder / f"{journal.workflow_id.replace('/', '-')}.json"
            if not path.exists():
                journal.write(path)
                path.write_text(_without_places(path.read_text()))


def _without_places(text: str) -> str:
    """Tracebacks name files: as they are called here, not where this machine has them."""
    for place, name in ((str(Path(fusee_mp.__file__).parents[1]), "."), (str(Path(asyncio.__file__).parents[1]), "python")):
        text = text.replace(place, name)
    return text


def main() -> None:
    folder = HERE / fusee_mp.__version__ / f"cpython-{sys.version_info.major}.{sys.version_info.minor}"
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(write(folder))


if __name__ == "__main__":
    main()
