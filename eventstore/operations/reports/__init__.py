"""Documents that commands print with `--json`: one struct each, from which its JSON Schema is made."""
