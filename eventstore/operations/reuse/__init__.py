"""Reuse of the results of an earlier run: the plan, the act, the lineage."""
