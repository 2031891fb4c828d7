"""Repair of a damaged stream, of the files beside it and of unpublished results."""
