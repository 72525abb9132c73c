from __future__ import annotations

from fusee_mp.cli.main import main

main()
