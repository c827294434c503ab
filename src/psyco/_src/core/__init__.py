"""Errors, files and registries: what every other package uses."""
