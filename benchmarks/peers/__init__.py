"""What others reach on the same environment in the same number of steps: `python -m benchmarks.peers`."""
