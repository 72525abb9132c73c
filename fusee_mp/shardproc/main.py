"""`python -m fusee_mp.shardproc OPTIONS`: started by the router, never by hand."""
from __future__ import annotations

import asyncio
import gc
import logging
import signal
from typing import Final

import msgspec

from fusee_mp import logs
from fusee_mp.errors import DamagedLog, FuseeError, StorageFull
from fusee_mp.shardproc.process import EXIT_DAMAGED, EXIT_LOG_FAILED, ShardOptions, ShardProcess

LOG: Final = logging.getLogger("fusee_mp.shard")


async def serve(options: ShardOptions) -> int:
    process = ShardProcess(options)
    try:
        return await process.run()
    except FuseeError as e:
        process.refuse(e)
        LOG.critical("%s", e)
        return EXIT_DAMAGED if isinstance(e, DamagedLog) else EXIT_LOG_FAILED if not isinstance(e, StorageFull) else 75


def main(arguments: list[str]) -> int:
    options = msgspec.json.decode(arguments[0], type=ShardOptions)
    # The router decides when this process ends: a Ctrl-C at the terminal reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logs.configure(f"shard-{options.shard:03d}")
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(options))
    return uvloop.run(serve(options))
