"""The subcommands of `specedge`, one module each."""
