"""`python -m psyco` is the same program as `psyco`."""

from psyco._src.cli import main

main()
