"""One run directory: its small files, its names, and whether its writer lives."""
