"""Private modules; the public names are listed in `psyco/__init__.pyi`."""
