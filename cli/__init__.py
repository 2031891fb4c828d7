"""The command line: parses, calls, prints, exits."""

__distribution__ = "compass-es"
