"""The command line: `main` joins the commands, each of which is a file of its own."""
