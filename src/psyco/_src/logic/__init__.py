"""What must hold: the requirement language, and what a path makes of it."""
