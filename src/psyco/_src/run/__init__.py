"""What is kept of a run."""
