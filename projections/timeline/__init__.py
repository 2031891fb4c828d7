"""The folds behind phase times, attempts, tasks in flight and the live board."""
