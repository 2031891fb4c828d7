"""Diagnosis of one run."""
