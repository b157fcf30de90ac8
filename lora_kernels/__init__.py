"""Multi-LoRA kernels: many adapters of different ranks over one base, in one batch. Imports torch and triton only."""

from lora_kernels import reference
from lora_kernels.errors import (
    BackendError,
    DeviceError,
    DtypeError,
    LoraKernelError,
    NonFiniteError,
    PoolFullError,
    RankError,
    ShapeError,
    SlotError,
    TargetError,
)
from lora_kernels.metadata import BatchMetadata, MetadataBuffers, Segment
from lora_kernels.ops.apply import lora_apply, lora_expand, lora_shrink
from lora_kernels.pool import AdapterPool
from lora_kernels.spec import AdapterTensors, LoraPair, PoolSpec, SiteSpec, Target

__all__ = [
    "AdapterPool",
    "AdapterTensors",
    "BackendError",
    "BatchMetadata",
    "DeviceError",
    "DtypeError",
    "LoraKernelError",
    "LoraPair",
    "MetadataBuffers",
    "NonFiniteError",
    "PoolFullError",
    "PoolSpec",
    "RankError",
    "Segment",
    "ShapeError",
    "SiteSpec",
    "SlotError",
    "Target",
    "TargetError",
    "lora_apply",
    "lora_expand",
    "lora_shrink",
    "reference",
]
