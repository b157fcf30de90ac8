"""The plaintext inside a package; the tensors start at a multiple of 64, so that a reader can use them where they lie.

- suite 1: `u64 config length ‖ u64 tensors length ‖ config ‖ zeros to 64 ‖ tensors`
- suite 2: `u64 config length ‖ u64 contract length ‖ u64 tensors length ‖ config ‖ contract ‖ zeros to 64 ‖ tensors`
- suite 3: `rows`, and nothing else
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sealed_weights.errors import FormatError

CONFIG_NAME = "adapter_config.json"
TENSORS_NAME = "adapter_model.safetensors"
CONTRACT_NAME = "contract.json"
ALIGNMENT = 64
MAX_CONFIG = 1 << 20
MAX_CONTRACT = 1 << 16

_LENGTHS = struct.Struct(">QQ")
_LENGTHS_WITH_CONTRACT = struct.Struct(">QQQ")


@dataclass(frozen=True, slots=True, repr=False)
class Payload:
    """The files of a package, as views of its plaintext; a package of suite 1 has no contract."""

    config: memoryview
    contract: memoryview | None
    tensors: memoryview


def tensors_offset(config_length: int, contract_length: int | None = None) -> int:
    """Return where the tensors start, in bytes from the start of the plaintext."""
    lengths = _LENGTHS if contract_length is None else _LENGTHS_WITH_CONTRACT
    end = lengths.size + config_length + (contract_length or 0)
    return end + -end % ALIGNMENT


def frame_prefix(config: bytes, tensors_length: int, contract: bytes | None = None) -> bytes:
    """Return everything before the tensors. Raises `FormatError` for an empty or oversized part."""
    if not 0 < len(config) <= MAX_CONFIG:
        raise FormatError(f"{CONFIG_NAME}: must be 1 byte to {MAX_CONFIG} bytes long")
    if contract is not None and not 0 < len(contract) <= MAX_CONTRACT:
        raise FormatError(f"{CONTRACT_NAME}: must be 1 byte to {MAX_CONTRACT} bytes long")
    if tensors_length <= 0:
        raise FormatError(f"{TENSORS_NAME}: must not be empty")
    if contract is None:
        prefix = _LENGTHS.pack(len(config), tensors_length) + config
        return prefix.ljust(tensors_offset(len(config)), b"\0")
    prefix = _LENGTHS_WITH_CONTRACT.pack(len(config), len(contract), tensors_length) + config + contract
    return prefix.ljust(tensors_offset(len(config), len(contract)), b"\0")


def split(plaintext: memoryview, *, with_contract: bool) -> Payload:
    """Return the files as views of `plaintext`, its length already authenticated. Raises `FormatError`."""
    lengths = _LENGTHS_WITH_CONTRACT if with_contract else _LENGTHS
    if len(plaintext) < lengths.size:
        raise FormatError("payload: shorter than its own lengths")
    config_length, *middle, tensors_length = lengths.unpack(plaintext[: lengths.size])
    contract_length = middle[0] if with_contract else None
    if not 0 < config_length <= MAX_CONFIG:
        raise FormatError("payload config length: out of range")
    if contract_length is not None and not 0 < contract_length <= MAX_CONTRACT:
        raise FormatError("payload contract length: out of range")
    start = tensors_offset(config_length, contract_length)
    if tensors_length == 0 or start + tensors_length != len(plaintext):
        raise FormatError("payload tensors length: does not fill the payload exactly")
    config_end = lengths.size + config_length
    end = config_end + (contract_length or 0)
    if any(plaintext[end:start]):
        raise FormatError("payload padding: must be zero")
    contract = None if contract_length is None else plaintext[config_end:end]
    return Payload(plaintext[lengths.size : config_end], contract, plaintext[start:])
