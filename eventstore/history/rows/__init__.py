"""A run turned into rows."""
