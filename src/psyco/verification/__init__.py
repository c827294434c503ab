"""V: verifying a policy."""
