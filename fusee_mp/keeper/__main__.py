from __future__ import annotations

from fusee_mp.keeper.main import main

main()
