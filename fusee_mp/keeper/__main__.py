"""`python -m fusee_mp.keeper`: see main.py."""
from __future__ import annotations

import sys

# There is a keeper for each shard, so its memory counts. Hashing IDs needs BLAKE2 only, which Python has itself: without OpenSSL
# a keeper is 3 MiB smaller.
sys.modules["_hashlib"] = None  # type: ignore[assignment]

from fusee_mp.keeper.main import main  # noqa: E402  # the line above comes first

main()
