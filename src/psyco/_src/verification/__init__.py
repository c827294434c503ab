"""Statistical model checking: tests over counts of outcomes, each with the guarantee that it gives."""
