# Ctrl-C while modules are still being loaded is to end the command as quietly as later, when `main` sees to it.
#
# So the first thing is a handler that ends the process, and nothing is imported before it is in place.
from __future__ import annotations

import os
import signal


def run() -> None:
    """The command line as a whole process. Does not return."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # Else somebody has it ignored, and that is kept.
        signal.signal(signal.SIGINT, _end)
    from fusee_mp.cli.main import main

    signal.signal(signal.SIGINT, usual)
    main()


def _end(number: int, frame: object) -> None:
    os._exit(130)


if __name__ == "__main__":
    run()
