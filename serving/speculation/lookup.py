"""Prompt lookup: the last tokens occurred before, in the prompt or the answer, and what followed may follow again.

Source: Saxena, "Prompt lookup decoding", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

# Tokens that are searched, from the end back, and how many must agree: longest first.
_WINDOW = 512
_LENGTHS = (4, 3, 2)


def ahead(tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` tokens that followed the latest earlier occurrence of the last few tokens, if there is one.

    tokens: prompt and answer so far
    """
    window = tokens[-_WINDOW:]
    last = len(window) - 1
    if last < 0:
        return ()
    ends = [place for place in range(last - 1, -1, -1) if window[place] == window[last]]
    for length in _LENGTHS:
        key = window[len(window) - length :]
        for end in ends:
            if end + 1 >= length and window[end + 1 - length : end + 1] == key:
                return tuple(window[end + 1 : end + 1 + most])
    return ()
