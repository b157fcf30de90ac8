"""Latency classes: how soon an answer is wanted. A class is paid for, so a ticket names it and a receipt repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

LatencyClass = Literal["interactive", "standard", "batch"]

# OpenAI's `service_tier` of a body → the class; None is a body that names no tier.
CLASS_OF_TIER: Mapping[str | None, LatencyClass] = MappingProxyType(
    {None: "standard", "auto": "standard", "default": "standard", "priority": "interactive", "flex": "batch"}
)
