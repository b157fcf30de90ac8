"""From the two files of a PEFT adapter to kernel tensors. Strict intake first: see `sealed_weights.intake`."""

from __future__ import annotations

import warnings

import torch

from lora_kernels import AdapterTensors, LoraPair
from sealed_weights import BaseSpec, check_adapter, parse_safetensors_header
from serving.models.loader import FUSED

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Module suffix ("self_attn.k_proj") → (site, slice of the fused weight).
_PLACE = {part: (site, index) for site, parts in FUSED.items() for index, part in enumerate(parts)}


def adapter_tensors(config: bytes, data: bytearray | memoryview, base: BaseSpec) -> AdapterTensors:
    """The adapter in `config` (adapter_config.json) and `data` (adapter_model.safetensors), checked against `base`.

    The tensors are views of `data`: keep it until they are copied. Raises IntakeError naming the field and the rule.
    """
    summary = check_adapter((config, data), base)
    infos = parse_safetensors_header(data)

    def view(name: str) -> torch.Tensor:
        info = infos[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # read-only memory: nobody writes through these views
            flat = torch.frombuffer(
                data[info.start : info.end]
                if isinstance(data, memoryview)
                else memoryview(data)[info.start : info.end],
                dtype=_DTYPES[info.dtype],
            )
        return flat.view(info.shape)

    tensors = {}
    for module, scale in summary.scales.items():
        _, _, layer, suffix = module.split(".", 3)
        site, index = _PLACE[suffix]
        name = f"base_model.model.{module}.lora_"
        tensors[int(layer), site, index] = LoraPair(view(name + "A.weight"), view(name + "B.weight"), scale)
    return tensors
