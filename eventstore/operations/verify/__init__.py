"""Verification of run directories."""
