"""One module per group of commands: arguments and output. The work of a command is done one level up."""
