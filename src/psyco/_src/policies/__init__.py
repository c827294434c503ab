"""Policies: the network of the paper and its file, external policies, and the protocols that both follow."""
