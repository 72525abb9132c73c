import sys

from fusee_mp.shardproc.main import main

sys.exit(main(sys.argv[1:]))
