"""After deployment: tests whether the requirement still holds in the field."""
