"""`python -m psyco` is the same program as `psyco`."""

from psyco.cli import main

main()
