"""The paper's experiments, every one of its figures, and what becomes of its claims."""
