"""The command line: one file per command, which `main` joins, and what the commands share."""
