"""Strict intake: own parsers for the files that a creator sends. Everything that is not plainly allowed is refused."""
