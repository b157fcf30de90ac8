"""The plaintext inside a package: `u64 config length ‖ u64 tensors length ‖ config ‖ zeros to 64 ‖ tensors`.

The tensors start at a multiple of 64 so that a reader can use them where they lie, without a copy.
"""

from __future__ import annotations

import struct

from sealed_weights.errors import FormatError

CONFIG_NAME = "adapter_config.json"
TENSORS_NAME = "adapter_model.safetensors"
ALIGNMENT = 64
MAX_CONFIG = 1 << 20

_LENGTHS = struct.Struct(">QQ")


def tensors_offset(config_length: int) -> int:
    """Return where the tensors start, in bytes from the start of the plaintext."""
    end = _LENGTHS.size + config_length
    return end + -end % ALIGNMENT


def frame_prefix(config: bytes, tensors_length: int) -> bytes:
    """Return everything before the tensors. Raises `FormatError` for an empty or oversized part."""
    if not 0 < len(config) <= MAX_CONFIG:
        raise FormatError(f"{CONFIG_NAME}: must be 1 byte to {MAX_CONFIG} bytes long")
    if tensors_length <= 0:
        raise FormatError(f"{TENSORS_NAME}: must not be empty")
    prefix = _LENGTHS.pack(len(config), tensors_length) + config
    return prefix.ljust(tensors_offset(len(config)), b"\0")


def split(plaintext: memoryview) -> tuple[memoryview, memoryview]:
    """Return (config, tensors) as views of `plaintext`, its length already authenticated. Raises `FormatError`."""
    if len(plaintext) < _LENGTHS.size:
        raise FormatError("payload: shorter than its own lengths")
    config_length, tensors_length = _LENGTHS.unpack(plaintext[: _LENGTHS.size])
    if not 0 < config_length <= MAX_CONFIG:
        raise FormatError("payload config length: out of range")
    start = tensors_offset(config_length)
    if tensors_length == 0 or start + tensors_length != len(plaintext):
        raise FormatError("payload tensors length: does not fill the payload exactly")
    config = plaintext[_LENGTHS.size : _LENGTHS.size + config_length]
    if any(plaintext[_LENGTHS.size + config_length : start]):
        raise FormatError("payload padding: must be zero")
    return config, plaintext[start:]
