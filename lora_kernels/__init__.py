"""Multi-LoRA kernels: many adapters of different ranks over one base, in one batch. Needs torch and numpy.

Public besides the names here: `extras`, `native` (the C library from other native code), `memory` (memory on demand),
`training`, and `reference` for tests. Everything else may change.
"""

from lora_kernels.apply import lora_apply, lora_expand, lora_shrink, lora_write
from lora_kernels.batch import MetadataBuffers
from lora_kernels.errors import (
    BackendError,
    DeviceError,
    DtypeError,
    ExtrasError,
    LoraKernelError,
    NonFiniteError,
    PoolFullError,
    QualityError,
    RankError,
    ReservationError,
    ShapeError,
    SlotError,
    StagingError,
    TargetError,
)
from lora_kernels.loading.reservation import Reservation
from lora_kernels.metadata import BatchMetadata
from lora_kernels.pool import AdapterPool
from lora_kernels.spec import AdapterTensors, LoraPair, PoolSpec, SiteSpec, Target

__all__ = [
    "AdapterPool",
    "AdapterTensors",
    "BackendError",
    "BatchMetadata",
    "DeviceError",
    "DtypeError",
    "ExtrasError",
    "LoraKernelError",
    "LoraPair",
    "MetadataBuffers",
    "NonFiniteError",
    "PoolFullError",
    "PoolSpec",
    "QualityError",
    "RankError",
    "Reservation",
    "ReservationError",
    "ShapeError",
    "SiteSpec",
    "SlotError",
    "StagingError",
    "Target",
    "TargetError",
    "lora_apply",
    "lora_expand",
    "lora_shrink",
    "lora_write",
]
