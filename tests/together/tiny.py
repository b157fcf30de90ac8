"""The tiny model of tests/serving, for tests that import no torch: made by tests/together/maker.py, once a session."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tiers import SERVICES
from tests.warm import warm

PROMPT = [40, 41, 42, 43, 44, 45]
TOKENS = 24  # that the answers have
ANSWERS = "answers.json"
ADAPTERS = ("r4", "r8-attention", "r16-rslora", "r20-patterns")


@dataclass(frozen=True)
class Tiny:
    """A model and its adapters, as folders; `reference` is what transformers and PEFT answered to PROMPT."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def adapters(self) -> Path:
        return self.folder / "adapters"

    def reference(self, adapter: str | None, prompt: Sequence[int], tokens: int) -> list[int]:
        """Return the greedy continuation in float32, end-of-sequence ignored."""
        assert list(prompt) == PROMPT and tokens <= TOKENS, "the maker answers one prompt"
        answers: dict[str, list[int]] = json.loads((self.folder / ANSWERS).read_text())
        return answers[adapter or ""][:tokens]


def shared_tiny() -> Tiny:
    """Return the one of this session: its workers share a folder, and the first that comes has it made."""
    folder = Path(os.environ[SERVICES]) / "tiny"
    folder.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not (folder / ANSWERS).exists():
            warm().run("tests.together.maker", "tiny", folder)
    finally:
        os.close(handle)
    return Tiny(folder)
