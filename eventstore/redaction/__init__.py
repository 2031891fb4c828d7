"""Secrets out of values and texts. No disk, no clock."""
