"""What needs PEFT on a creator's machine: conversion to plain LoRA, and PEFT's own answers.

Importing it loads torch, transformers and PEFT, which the extra `convert` installs.
"""

from peft_bridge.answers import BesideBase, PeftAnswer, answer, beside_base, contract_messages, prompt_of
from peft_bridge.conversion import (
    MAX_ERROR,
    MAX_RANK,
    Conversion,
    ModuleError,
    convert,
    method_of,
    subtract_initial,
)
from peft_bridge.errors import BridgeError
from peft_bridge.models import LoadedAdapter, load_adapter, versions

__all__ = [
    "MAX_ERROR",
    "MAX_RANK",
    "BesideBase",
    "BridgeError",
    "Conversion",
    "LoadedAdapter",
    "ModuleError",
    "PeftAnswer",
    "answer",
    "beside_base",
    "contract_messages",
    "convert",
    "load_adapter",
    "method_of",
    "prompt_of",
    "subtract_initial",
    "versions",
]
