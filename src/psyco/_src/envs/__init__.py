"""Where the agent acts."""
