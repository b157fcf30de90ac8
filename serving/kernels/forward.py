"""`sk_forward` of cpu/forward.h: its structures, and the call."""

from __future__ import annotations

import ctypes

import torch

from serving.kernels.library import KernelLibrary
from serving.kernels.linear import CLinear

Pointer, Integer = ctypes.c_void_p, ctypes.c_int64

# SK_F32 and so on
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}

# SK_ROW_SLACK of linear.h
ROW_SLACK = 64

# Order of SK_QKV and so on
SITES = ("qkv", "o", "gate_up", "down")


# Order of SK_ROWS and so on
PARTS = ("rows", "products", "adapters", "attention", "head", "waiting")


class CTimes(ctypes.Structure):
    """`sk_times`: nanoseconds that the first thread spent on each of PARTS."""

    _fields_ = (("since", Integer), ("ns", Integer * len(PARTS)))


class CLayer(ctypes.Structure):
    """`sk_layer`."""

    _fields_ = (
        ("linear", CLinear * len(SITES)),
        ("input_norm", Pointer),
        ("post_norm", Pointer),
        ("qkv_bias", Pointer),
        ("q_norm", Pointer),
        ("k_norm", Pointer),
        ("attended_norm", Pointer),
        ("fed_norm", Pointer),
        ("rope", Pointer),
        ("window", Integer),
        ("lora", Pointer * len(SITES)),
    )


class CExtras(ctypes.Structure):
    """`sk_extras`."""

    _fields_ = (
        *((name, Pointer) for name in ("scales", "biases")),
        *((name, Integer) for name in ("embed_rank", "head_rank")),
        *((name, Pointer) for name in ("embed_down", "embed_up", "head_down", "head_up", "head_scale")),
        *((name, Integer) for name in ("embed_tokens", "head_tokens")),
        *((name, Pointer) for name in ("embed_ids", "head_ids", "embed_rows", "head_rows")),
    )


class CModel(ctypes.Structure):
    """`sk_model`."""

    _fields_ = (
        *(
            (name, Integer)
            for name in (
                "hidden",
                "heads",
                "kv_heads",
                "head_dim",
                "intermediate",
                "vocab",
                "layers",
                "max_rows",
                "max_positions",
                "rotated",
                "gelu",
            )
        ),
        *((name, ctypes.c_float) for name in ("eps", "embed_scale", "score_scale", "score_cap", "logit_cap")),
        ("embed", Pointer),
        ("embed_dtype", Integer),
        ("norm", Pointer),
        ("head", CLinear),
        ("layer", ctypes.POINTER(CLayer)),
        ("lora_scratch", Pointer),
        ("kv", Pointer),
        ("kv_dtype", Integer),
        ("num_blocks", Integer),
        ("block_size", Integer),
        *((name, Pointer) for name in ("residual", "normed", "qkv", "attended", "gate_up", "activated", "scratch")),
    )


class CStep(ctypes.Structure):
    """`sk_step`."""

    _fields_ = (
        ("rows", Integer),
        ("chunks", Integer),
        *((name, Pointer) for name in ("token_ids", "chunk_rows", "chunk_starts", "chunk_tables", "blocks")),
        ("samples", Integer),
        ("embeds", Integer),
        *((name, Pointer) for name in ("sample_rows", "lora", "wanted_lora", "extras", "wanted_extras")),
        ("trims", Integer),
        *((name, Pointer) for name in ("final", "logits", "best")),
        ("threads", Integer),
        ("times", Pointer),
    )


def scratch_bytes(library: KernelLibrary, model: CModel, threads: int) -> int:
    """Return the bytes that `model.scratch` must have for steps on up to `threads` threads."""
    function = library.handle.sk_scratch_bytes
    function.argtypes, function.restype = (Pointer, Integer), Integer
    return int(function(ctypes.byref(model), threads))


def forward(library: KernelLibrary, model: CModel, step: CStep) -> None:
    """Run a whole forward pass. Raises ValueError before any write for a token, position or block out of range."""
    if library.handle.sk_forward(ctypes.byref(model), ctypes.byref(step)):
        raise ValueError("a step names a token, a position, a row or a KV block that this model does not have")
