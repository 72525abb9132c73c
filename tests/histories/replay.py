"""Replay every kept journal with the workflows of today: `python -m tests.histories.replay`. Exit 1 and a line for each that differs.

It needs an interpreter with msgspec and typing_extensions, nothing else.
"""
from __future__ import annotations

import sys
from pathlib import Path

from fusee_mp.sdk.journals import Journal
from fusee_mp.sdk.replayer import Replayer
from tests.histories.workflows import WORKFLOWS

HISTORIES = sorted(Path(__file__).resolve().parent.rglob("*.json"))


def differences() -> list[str]:
    replayer = Replayer(workflows=WORKFLOWS)
    found = []
    for path in HISTORIES:
        journal = Journal.read(path)
        replay = replayer.replay(journal)
        if not (replay.ok and replay.finished):
            found.append(f"{path.parent.name}/{path.name}: {replay.error}")
    return found


if __name__ == "__main__":
    said = differences()
    print("\n".join([*said, f"{len(HISTORIES)} journals, {len(said)} differ, on {sys.version.split()[0]}"]))
    sys.exit(bool(said))
