"""L: learning a policy."""
