"""Everything that is not public; `psyco` itself lists what is."""
