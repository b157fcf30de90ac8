"""Strict intake: own parsers for the files that a creator sends. Whatever is not plainly allowed is refused."""
