"""Multi-LoRA kernels: many adapters of different ranks over one base, in one batch. Needs torch alone."""

from lora_kernels import reference
from lora_kernels.errors import (
    BackendError,
    DeviceError,
    DtypeError,
    LoraKernelError,
    NonFiniteError,
    PoolFullError,
    QualityError,
    RankError,
    ReservationError,
    ShapeError,
    SlotError,
    TargetError,
)
from lora_kernels.metadata import BatchMetadata, MetadataBuffers, Segment
from lora_kernels.ops.apply import lora_apply, lora_expand, lora_shrink
from lora_kernels.ops.autograd import AdapterRows, lora_delta
from lora_kernels.ops.embed import lora_embed
from lora_kernels.ops.logits import lora_logits
from lora_kernels.ops.write import lora_write
from lora_kernels.pool import AdapterPool
from lora_kernels.reservation import Reservation
from lora_kernels.spec import AdapterTensors, LoraPair, PoolSpec, SiteSpec, Target
from lora_kernels.training import AdapterBatch, lora_linear

__all__ = [
    "AdapterBatch",
    "AdapterPool",
    "AdapterRows",
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
    "QualityError",
    "RankError",
    "Reservation",
    "ReservationError",
    "Segment",
    "ShapeError",
    "SiteSpec",
    "SlotError",
    "Target",
    "TargetError",
    "lora_apply",
    "lora_delta",
    "lora_embed",
    "lora_expand",
    "lora_linear",
    "lora_logits",
    "lora_shrink",
    "lora_write",
    "reference",
]
