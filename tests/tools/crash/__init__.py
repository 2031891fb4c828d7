"""Every state that a crash can leave, built from what was written, and judged."""
