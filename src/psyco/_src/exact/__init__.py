"""Exact answers on finite domains."""
