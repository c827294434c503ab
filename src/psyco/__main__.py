"""`python -m psyco` is the same program as `psyco`."""

import signal
import sys

try:
    from psyco._src.cli import main

    main()
except KeyboardInterrupt:  # while even that was imported
    sys.exit(130)
finally:  # the result is known; an interruption while Python ends would print a traceback
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
