"""Fine-tuning with many adapters in one batch, and adapters on the embedding and the output head.

Serving needs none of it. Imports the rest of lora_kernels; nothing there imports it.
"""

from lora_kernels.training.adapters import AdapterBatch, lora_linear
from lora_kernels.training.delta import AdapterRows, lora_delta
from lora_kernels.training.embed import lora_embed
from lora_kernels.training.logits import lora_logits

__all__ = ["AdapterBatch", "AdapterRows", "lora_delta", "lora_embed", "lora_linear", "lora_logits"]
