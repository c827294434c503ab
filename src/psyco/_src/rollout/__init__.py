"""How episodes are made."""
