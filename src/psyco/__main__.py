"""`python -m psyco` is the same program as `psyco`."""

import sys

try:
    from psyco._src.cli import main

    main()
except KeyboardInterrupt:  # while even that was imported
    sys.exit(130)
