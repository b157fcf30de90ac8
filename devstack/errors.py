"""What can go wrong on one machine, said so that the reader knows what to do next."""


class LocalStackError(Exception):
    """Shown to the user as it is, without a traceback: what is wrong, then what to do."""
