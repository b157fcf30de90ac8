"""The child process that finds personal data: presidio's pattern recognizers, asked over the socket that is its stdin.

Run as a file, in isolated mode: it imports nothing of ours. It holds no credentials, opens no connection, writes no
file, and keeps nothing of a text. A frame is four bytes of length, then JSON: `{"kinds", "texts", "cpu_seconds"}` is
answered by one list of `[start, end, kind]` for each text. A search that takes more processor time ends the process.

It is a process of its own because presidio imports spaCy (120 MB, seconds), because its telephone numbers cost 20 µs
per character of digits under Python's lock, and because only a process can be stopped in the middle of a pattern.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

MAX_FRAME_BYTES = 2**22
LEAST_SCORE = 0.4  # presidio's of a telephone number; what a checksum proves has 1.0, what one disproves is left out
_CHECKED_SCORE = 0.5  # of a national number: patterns without a checksum have less

Finder = Callable[[str], Iterator[tuple[int, int]]]

# The only text in which a telephone number can be: seven digits with short gaps (`phonenumbers` allows four characters
# between two, and an extension; a plus begins a new number), and what it looks at around
# them. Other text is not worth 20 µs per character.
_PHONE_LIKE = re.compile(r"\d(?:[^\w+]{0,4}(?:e?xt?\.?:? ?)?\d){6,}", re.IGNORECASE)
_INTERNATIONAL = re.compile(r"\+\d(?:[^\w+]{0,4}\d){6,14}(?![^\w]{0,4}\d)")  # the same in every region
_BEFORE = re.compile(r"\D{0,12}\Z")
_AFTER = re.compile(r"\D{0,12}")
_MARGIN = 12


def load() -> dict[str, list[Finder]]:
    """Return the finders of each kind. Raises ImportError."""
    # The list of public suffixes that the package brings is used: without this, the first address would fetch another.
    os.environ["TLDEXTRACT_PUBLIC_SUFFIX_LIST_URLS"] = ""
    sys.modules["torch"] = None  # type: ignore[assignment]  # spaCy would load it where it is installed
    from presidio_analyzer import pattern_recognizer
    from presidio_analyzer import predefined_recognizers as presidio

    pattern_recognizer.logger = _NeverSkips()  # type: ignore[assignment]
    national = (
        "NhsRecognizer EsNifRecognizer EsNieRecognizer FiPersonalIdentityCodeRecognizer ItFiscalCodeRecognizer "
        "PlPeselRecognizer InAadhaarRecognizer AuTfnRecognizer AuMedicareRecognizer SePersonnummerRecognizer "
        "DeTaxIdRecognizer CaSinRecognizer UsSsnRecognizer"
    )
    return {
        "card": [_finder(presidio.CreditCardRecognizer())],
        "iban": [_finder(presidio.IbanRecognizer())],
        "wallet": [_finder(presidio.CryptoRecognizer())],
        "email": [_finder(presidio.EmailRecognizer())],
        "ip": [_finder(presidio.IpRecognizer())],
        "id": [_finder(getattr(presidio, name)(), _CHECKED_SCORE) for name in national.split()],
        "phone": [
            _phones(_finder(presidio.PhoneRecognizer()), _finder(presidio.PhoneRecognizer(supported_regions=("US",))))
        ],
    }


class _NeverSkips:
    """presidio's logger: where it would warn that a pattern took too long and is skipped, the search fails."""

    def debug(self, *_: object, **__: object) -> None:
        """Say nothing."""

    def warning(self, *_: object, **__: object) -> None:
        """Fail: text that was not searched must not pass for text without a finding."""
        raise RuntimeError("a pattern was skipped")


def _finder(recognizer: Any, least: float = LEAST_SCORE) -> Finder:
    def find(text: str) -> Iterator[tuple[int, int]]:
        for one in recognizer.analyze(text, recognizer.supported_entities, None):
            if one.score >= least:
                yield one.start, one.end

    return find


def _phones(find: Finder, find_international: Finder) -> Finder:
    def find_phones(text: str) -> Iterator[tuple[int, int]]:
        for piece in _PHONE_LIKE.finditer(text):
            first, last = piece.span()
            before = _BEFORE.search(text, max(0, first - _MARGIN), first)
            after = _AFTER.match(text, last)
            assert before and after, "both match nothing, too"
            international = first > 0 and _INTERNATIONAL.fullmatch(text, first - 1, last)
            find_here = find_international if international else find
            for start, end in find_here(text[before.start() : after.end()]):
                yield before.start() + start, before.start() + end

    return find_phones


def search(finders: dict[str, list[Finder]], kinds: list[str], text: str) -> list[tuple[int, int, str]]:
    """Return what was found, in order, without overlaps.

    Findings that share characters become one, of the kind that comes first in `finders`.
    """
    order = [kind for kind in finders if kind in kinds]
    if len(order) != len(kinds):
        raise ValueError("an unknown kind")
    found = sorted(
        (start, end, rank) for rank, kind in enumerate(order) for find in finders[kind] for start, end in find(text)
    )
    merged: list[tuple[int, int, int]] = []
    for start, end, rank in found:
        if merged and start < merged[-1][1]:
            before = merged.pop()
            start, end, rank = before[0], max(end, before[1]), min(rank, before[2])
        merged.append((start, end, rank))
    return [(start, end, order[rank]) for start, end, rank in merged]


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            os._exit(0)  # the gateway is gone
        data += piece
    return data


def _write(connection: socket.socket, value: object) -> None:
    data = json.dumps(value).encode()
    connection.sendall(struct.pack("!I", len(data)) + data)


def main() -> None:
    """Serve until the gateway closes its end. The first frame says whether the package could be imported."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump of memory would be a text on a disk
    connection = socket.socket(fileno=0)
    try:
        finders = load()
    except ImportError:
        _write(connection, {"ready": False})
        return
    _write(connection, {"ready": True})
    while True:
        (size,) = struct.unpack("!I", _read(connection, 4))
        asked = json.loads(_read(connection, min(size, MAX_FRAME_BYTES)))
        signal.setitimer(signal.ITIMER_VIRTUAL, asked["cpu_seconds"])  # its signal kills, also inside a pattern
        found = [search(finders, asked["kinds"], text) for text in asked["texts"]]
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        _write(connection, found)


if __name__ == "__main__":
    main()
