"""Causes of failure, judged from facts."""
