"""The command `kwire` and its subcommands."""
