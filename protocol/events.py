"""Server-sent events of a replica's stream: `id: N`, one line of JSON, a blank line.

N counts the completion tokens of the whole request, over all its choices, that this event and those before it
complete: a gateway knows from the events it forwarded how many tokens the client was handed. `[DONE]` ends a stream and
has no id.

A comment `: checkpoint TOKEN` between two events carries a receipt of what the events so far complete, signed as if the
stream had ended there. Gateways keep the last one and settle with it where the replica is lost; clients never see it.

A comment `: waiting` says that the replica lives and has nothing to send yet: one goes out each second of that.
"""

from __future__ import annotations

import re

DONE = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"
_CHECKPOINT = b": checkpoint "

_EVENT = re.compile(rb"(?:id: ([0-9]{1,15})\n)?data: ([^\n]*)\n\n", re.DOTALL)


# Characters beyond a stream's own line ends at which clients break lines all the same, such as `str.splitlines` does;
# JSON writes the others (U+000B, U+001C and so on) in escapes by itself.
_LINE_ENDS = {char.encode(): b"\\u%04x" % ord(char) for char in "\x85\u2028\u2029"}


def format_event(data: bytes, tokens: int) -> bytes:
    """Return one event, of one line for every client.

    `data` is a value's JSON in one line, `tokens` the completion tokens so far.
    """
    if not data.isascii():
        for char, escaped in _LINE_ENDS.items():
            data = data.replace(char, escaped)
    return b"id: %d\ndata: %b\n\n" % (tokens, data)


def event_tokens(raw: bytes) -> int | None:
    """Return the completion tokens that an event and those before it complete; None where it does not say."""
    match = _EVENT.fullmatch(raw)
    return int(match[1]) if match and match[1] else None


def event_data(raw: bytes) -> bytes | None:
    """Return the JSON of one event; None for `[DONE]`, comments and whatever else is no such event."""
    match = _EVENT.fullmatch(raw)
    return None if match is None or raw == DONE else match[2]


def format_checkpoint(receipt: str) -> bytes:
    """Return the comment that carries a receipt, which is a JWS in compact form."""
    return b"%b%b\n\n" % (_CHECKPOINT, receipt.encode("ascii"))


def is_comment(raw: bytes) -> bool:
    """Return whether it is a comment, which clients do not get: a checkpoint, a sign of life, or one of later days."""
    return raw.startswith(b":")


def checkpoint_of(raw: bytes) -> str | None:
    """Return the receipt in a checkpoint; None for anything else."""
    if not raw.startswith(_CHECKPOINT):
        return None
    return raw[len(_CHECKPOINT) :].strip().decode("ascii", "replace")
