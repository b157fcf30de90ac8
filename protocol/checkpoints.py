"""The identity of a checkpoint: the files of a base model, and the precision that a replica computes them in.

Two replicas give the same answers only if both agree. Floats of 16 and 32 bits count as one precision: they differ in
roundings of the numbers that the files hold, while 8 bits make other numbers of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal, get_args

from protocol.errors import ProtocolError

Weights = Literal["float", "int8"]
Cache = Literal["float", "int8", "fp8"]

_DOMAIN: Final = b"intarsia/checkpoint/v1"


@dataclass(frozen=True, slots=True)
class ComputedIn:
    """The types that a replica makes of a base's weights, of its KV cache and of adapters when it loads them.

    "float" keeps what the files hold. Raises ProtocolError for a type that no replica has.
    """

    weights: Weights = "float"
    kv: Cache = "float"
    adapters: Weights = "float"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("weights", self.weights, Weights),
            ("KV cache", self.kv, Cache),
            ("adapters", self.adapters, Weights),
        ):
            if value not in get_args(known):
                raise ProtocolError(f"{name}: {value!r} is none of {', '.join(get_args(known))}")

    @classmethod
    def of_flags(cls, *, dtype: str, kv_dtype: str, adapter_dtype: str) -> ComputedIn:
        """Return what these flags of `python -m serving` mean: "auto" for the KV cache is the type of the weights."""
        weights: Weights = "int8" if dtype == "int8" else "float"
        caches: dict[str, Cache] = {"auto": weights, "bfloat16": "float", "int8": "int8", "fp8": "fp8"}
        if kv_dtype not in caches:
            raise ProtocolError(f"KV cache: {kv_dtype!r} is none of {', '.join(caches)}")
        return cls(weights, caches[kv_dtype], "int8" if adapter_dtype == "int8" else "float")

    def __str__(self) -> str:
        """Return it in words, empty where nothing was changed: "weights int8, KV int8"."""
        parts = (("weights", self.weights), ("KV", self.kv), ("adapters", self.adapters))
        return ", ".join(f"{name} {value}" for name, value in parts if value != "float")


AS_STORED: Final = ComputedIn()


def checkpoint_fingerprint(files: str, computed: ComputedIn) -> str:
    """Return the fingerprint that a replica registers and signs receipts with, 64 hex digits.

    `files` is that of the folder. It is the checkpoint's own where nothing was changed, and else SHA-256 of a domain,
    the files' fingerprint and the three types.
    """
    if computed == AS_STORED:
        return files
    stated = f"{files} {computed.weights} {computed.kv} {computed.adapters}".encode()
    return hashlib.sha256(_DOMAIN + b"\0" + stated).hexdigest()
