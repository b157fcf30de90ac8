"""One module for each group of commands: arguments and output. What a command does is one level up."""
