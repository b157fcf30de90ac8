"""Request ids: a client's own, where it can be logged and sent on, or a new one. Standard library only."""

from __future__ import annotations

import re
import uuid

REQUEST_ID_HEADER = "x-request-id"

_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{8,64}", re.ASCII)


def request_id_from(given: str | None) -> str:
    """Return the id that the client gave if it is 8 to 64 harmless characters, else a new UUID."""
    return given if given and _ACCEPTED.fullmatch(given) else str(uuid.uuid4())
