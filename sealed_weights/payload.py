"""The plaintext inside a package; the tensors start at a multiple of 64, so that a reader can use them where they lie.

- suite 1: `u64 config length ‖ u64 tensors length ‖ config ‖ zeros to 64 ‖ tensors`
- suite 2: `u64 config length ‖ u64 contract length ‖ u64 tensors length ‖ config ‖ contract ‖ zeros to 64 ‖ tensors`
- suite 3: `rows`, and nothing else
- suite 4: `u64 config length ‖ u64 contract length, 0 without one ‖ u64 reference length ‖ u64 tensors length ‖
  config ‖ contract ‖ reference ‖ zeros to 64 ‖ tensors`
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sealed_weights.errors import FormatError
from sealed_weights.header import CONTRACT_SUITE, REFERENCE_SUITE, SUITE

CONFIG_NAME = "adapter_config.json"
TENSORS_NAME = "adapter_model.safetensors"
CONTRACT_NAME = "contract.json"
REFERENCE_NAME = "reference.json"
ALIGNMENT = 64
MAX_CONFIG = 1 << 20
MAX_CONTRACT = 1 << 16
MAX_REFERENCE = 1 << 18

_LENGTHS = struct.Struct(">QQ")
_LENGTHS_WITH_CONTRACT = struct.Struct(">QQQ")
_LENGTHS_WITH_REFERENCE = struct.Struct(">QQQQ")


@dataclass(frozen=True, slots=True, repr=False)
class Payload:
    """The files of a package, as views of its plaintext; contract and reference are None where it has none."""

    config: memoryview
    contract: memoryview | None
    tensors: memoryview
    reference: memoryview | None = None


def suite_of(contract: bytes | None, reference: bytes | None) -> int:
    """Return the lowest suite that carries these files beside configuration and tensors."""
    if reference is not None:
        return REFERENCE_SUITE
    return SUITE if contract is None else CONTRACT_SUITE


def tensors_offset(config_length: int, contract_length: int | None = None, reference_length: int | None = None) -> int:
    """Return where the tensors start, in bytes from the start of the plaintext."""
    if reference_length is not None:
        lengths = _LENGTHS_WITH_REFERENCE
    else:
        lengths = _LENGTHS if contract_length is None else _LENGTHS_WITH_CONTRACT
    end = lengths.size + config_length + (contract_length or 0) + (reference_length or 0)
    return end + -end % ALIGNMENT


def frame_prefix(
    config: bytes, tensors_length: int, contract: bytes | None = None, reference: bytes | None = None
) -> bytes:
    """Return everything before the tensors. Raises `FormatError` for an empty or oversized part."""
    for name, part, most in (
        (CONFIG_NAME, config, MAX_CONFIG),
        (CONTRACT_NAME, contract, MAX_CONTRACT),
        (REFERENCE_NAME, reference, MAX_REFERENCE),
    ):
        if part is not None and not 0 < len(part) <= most:
            raise FormatError(f"{name}: must be 1 byte to {most} bytes long")
    if tensors_length <= 0:
        raise FormatError(f"{TENSORS_NAME}: must not be empty")
    sealed = contract or b""
    if reference is not None:
        lengths = _LENGTHS_WITH_REFERENCE.pack(len(config), len(sealed), len(reference), tensors_length)
    elif contract is not None:
        lengths = _LENGTHS_WITH_CONTRACT.pack(len(config), len(contract), tensors_length)
    else:
        lengths = _LENGTHS.pack(len(config), tensors_length)
    prefix = lengths + config + sealed + (reference or b"")
    return prefix + bytes(-len(prefix) % ALIGNMENT)


def split(plaintext: memoryview, suite: int) -> Payload:
    """Return the files as views of `plaintext`, its length already authenticated. Raises `FormatError`."""
    layouts = {SUITE: _LENGTHS, CONTRACT_SUITE: _LENGTHS_WITH_CONTRACT, REFERENCE_SUITE: _LENGTHS_WITH_REFERENCE}
    lengths = layouts[suite]
    if len(plaintext) < lengths.size:
        raise FormatError("payload: shorter than its own lengths")
    config_length, *middle, tensors_length = lengths.unpack(plaintext[: lengths.size])
    contract_length = middle[0] if middle else None
    reference_length = middle[1] if len(middle) > 1 else None
    if not 0 < config_length <= MAX_CONFIG:
        raise FormatError("payload config length: out of range")
    least = 0 if suite == REFERENCE_SUITE else 1
    if contract_length is not None and not least <= contract_length <= MAX_CONTRACT:
        raise FormatError("payload contract length: out of range")
    if reference_length is not None and not 0 < reference_length <= MAX_REFERENCE:
        raise FormatError("payload reference length: out of range")
    start = tensors_offset(config_length, contract_length, reference_length)
    if tensors_length == 0 or start + tensors_length != len(plaintext):
        raise FormatError("payload tensors length: does not fill the payload exactly")
    config_end = lengths.size + config_length
    contract_end = config_end + (contract_length or 0)
    end = contract_end + (reference_length or 0)
    if any(plaintext[end:start]):
        raise FormatError("payload padding: must be zero")
    return Payload(
        plaintext[lengths.size : config_end],
        plaintext[config_end:contract_end] if contract_length else None,
        plaintext[start:],
        plaintext[contract_end:end] if reference_length else None,
    )
