"""Runs a server as the command line would: options as JSON, {"fake": true} with the fake shard process."""
from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path

from fusee_mp.router.main import run
from fusee_mp.router.options import ServeOptions

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if given.pop("fake"):
        given["program"] = (sys.executable, "-P", str(Path(__file__).with_name("fake_shard.py")))
    if descriptors := given.pop("descriptors", 0):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    sys.exit(run(ServeOptions(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})))
