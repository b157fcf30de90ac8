"""Conversion of generated tokens to text that may be shown: whole UTF-8 characters only, with any possible start of a
stop string held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
# A character takes at most 4 bytes, so a decoder that still ends in U+FFFD after this many tokens has seen invalid
# UTF-8.
_MAX_HELD_TOKENS = 8


class Detokenizer:
    """A decoder of one token at a time. Its results, joined, equal the decoding of all tokens at once.

    Each step decodes a short window that starts a few tokens back, because a token's text can depend on its neighbours.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._window = 0  # first token of the window
        self._shown = 0  # tokens whose text has been returned

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes; empty while a character is incomplete."""
        self._ids.append(token_id)
        text = self._pending()
        if text.endswith(REPLACEMENT) and len(self._ids) - self._shown < _MAX_HELD_TOKENS:
            return ""
        if text:
            self._window, self._shown = self._shown, len(self._ids)
        else:
            self._ids.pop()  # A special token is not shown and must neither grow the window nor be its only context.
        return text

    def finish(self) -> str:
        """Return the remaining text, with U+FFFD for bytes that did not form a character."""
        text = self._pending()
        self._window = self._shown = len(self._ids)
        return text

    def _pending(self) -> str:
        before = self._decode(self._ids[self._window : self._shown])
        return self._decode(self._ids[self._window :])[len(before) :]


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

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._detokenizer, self._stops = Detokenizer(decode), StopStrings(stops)

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
