"""The experiments, figures and claims of the paper."""
