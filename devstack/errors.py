"""The one error of the local stack."""


class LocalStackError(Exception):
    """The message is shown to the user without a traceback: it says what is wrong, then what to do."""
