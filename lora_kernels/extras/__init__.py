"""Extras: what some adapters change beside ΔW of the layers' linears. Scales of outputs (DoRA), biases, factors of the
embedding and of the head, rows of trained tokens. They lie beside the pages, in memory that is counted and zeroed too.
"""

from lora_kernels.extras.memory import ExtraMemory, ExtraWriter
from lora_kernels.extras.resident import Extras, Factors, TokenRows
from lora_kernels.extras.rows import RowExtras

__all__ = ["ExtraMemory", "ExtraWriter", "Extras", "Factors", "RowExtras", "TokenRows"]
