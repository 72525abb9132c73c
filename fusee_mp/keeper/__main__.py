"""`python -m fusee_mp.keeper`: see main.py."""
from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec


def enter_without_running(package: str) -> None:
    """Make a package known without running its `__init__`, so that only the modules asked for are imported."""
    spec = find_spec(package)
    assert spec is not None
    sys.modules[package] = module_from_spec(spec)


# There is a keeper for each shard, so its memory counts. The log's `__init__` imports its writer, and that asyncio: 5 MiB which the
# reader does without. Hashing IDs needs BLAKE2 only, which Python has itself; OpenSSL would be 3 MiB more.
enter_without_running("fusee_mp.log")
sys.modules["_hashlib"] = None  # type: ignore[assignment]

from fusee_mp.keeper.main import main

main()
