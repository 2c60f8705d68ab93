"""The `warmpath` command: the one place where all parts meet."""
