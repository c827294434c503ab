"""Many runs that answer one question together."""
