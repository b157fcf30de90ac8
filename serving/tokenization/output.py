"""Conversion of generated tokens to text that may be shown: whole UTF-8 characters only, with any possible start of a
stop string held back."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
# A decoder of SentencePiece's kind writes U+FFFD for each byte of a run that is no UTF-8: after this many tokens
# without a whole character the text is shown as it is.
_MAX_HELD_TOKENS = 64


def without_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for surrogates without their other half, which no UTF-8 text can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Detokenizer(Protocol):
    """A decoder of one token at a time. Its results, joined, equal the decoding of all tokens at once."""

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes; empty while a character is incomplete."""
        ...

    def finish(self) -> str:
        """Return the remaining text, with U+FFFD for bytes that did not form a character."""
        ...


class ByteDetokenizer:
    """The decoder of a byte-level vocabulary, where each token is bytes of its own, whatever its neighbours.

    shown_bytes: the bytes of a token; empty for special tokens
    """

    def __init__(self, shown_bytes: Callable[[int], bytes]) -> None:
        self._bytes = shown_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._bytes(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """The decoder of any vocabulary in which a beginning of the tokens decodes to a beginning of the text.

    Each step decodes a short window that starts a few tokens back, because a token's text can depend on its neighbours.
    A decoder may also strip white space from the beginning: a window is moved on only to where it shows text by itself,
    since from there on nothing more is stripped. One thing is shown that `decode` would take back: a whole character of
    byte tokens, when a broken byte follows it, for which such decoders write U+FFFD over all bytes of the run.

    hidden: whether a token is never shown, as special ones are not
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], hidden: Callable[[int], bool]) -> None:
        self._decode, self._hidden = decode, hidden
        self._ids: list[int] = []
        self._window = 0  # first token of the window
        self._shown = 0  # tokens whose text has been returned
        self._before = ""  # the text of the window's tokens that have been shown

    def push(self, token_id: int) -> str:
        if self._hidden(token_id):
            return ""
        self._ids.append(token_id)
        text = self._pending()
        if text.endswith(REPLACEMENT) and len(self._ids) - self._shown < _MAX_HELD_TOKENS:
            return ""
        if text:
            self._move_on()
        return text

    def finish(self) -> str:
        text = self._pending()
        self._move_on()
        return text

    def _pending(self) -> str:
        return self._decode(self._ids[self._window :])[len(self._before) :]

    def _move_on(self) -> None:
        """Count all tokens as shown, and begin the window with the last ones where that is possible."""
        last, self._shown = self._shown, len(self._ids)
        if before := self._decode(self._ids[last:]):
            self._window, self._before = last, before
        else:
            self._before = self._decode(self._ids[self._window :])


class TextOffsets:
    """Where each token begins in the text of all of them, counted in characters. shown: characters so far.

    A token that continues a character begins where that character does.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer, self.shown = detokenizer, 0

    def next(self, token_id: int, written: str = "") -> int:
        """Return the offset of the next token. written: its text, if the text holds a special token as it is."""
        at = self.shown
        self.shown += len(self._detokenizer.push(token_id)) or len(written)
        return at


class StopStrings:
    """A filter that cuts a text stream before the first stop string, wherever the pieces are split."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Return the part of the text that can be shown: no stop string starts in that part or at its end."""
        if not self._stops:
            return text
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        cut = len(self._held) - self._longest_tail()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """Return the text that was held back and did not become a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _longest_tail(self) -> int:
        """Return the length of the longest end of the held text that a stop string starts with."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest


class CompletionText:
    """The `serving.core.OutputText` of one completion: detokenizer, then stop strings."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer, self._stops = detokenizer, StopStrings(stops)

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def push(self, token_id: int) -> str:
        return self._stops.push(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """Return the text still held, which may itself complete a stop string."""
        if self.stopped:
            return ""
        text = self._stops.push(self._detokenizer.finish())
        return text if self.stopped else text + self._stops.finish()
