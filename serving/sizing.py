"""Sizes from memory: what a card and a host have, what the model and its steps need, what is left for KV and adapters.

Arithmetic on values. Everything that a step needs on a card is counted before anything is allocated, so that a replica
that cannot work is refused before it reads 16 GB of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serving.errors import ConfigError
from serving.models.config import ModelConfig
from serving.models.integer_config import Integers

MIB = 1 << 20
# Share of what is left that resident adapters get: on 24 GB, 8 adapters of rank 16 on an 8B model beside 16,000 tokens.
ADAPTER_SHARE = 0.25
# Adapters are never given more than this many pages for each slot: rank 64.
PAGES_A_SLOT = 4
# Predicted, not measured: the driver's memory for a recorded graph of about 420 launches.
GRAPH_BYTES = 4 * MIB
# cuBLAS keeps a workspace for each stream that it has seen (on Hopper 32 MiB): the steps', the recording's, samplers'.
CUBLAS_BYTES = 3 * 32 * MIB
# Predicted, not measured: code of cuBLAS and of the compiled kernels.
CODE_BYTES = 256 * MIB
# Float32 partial results of attention: the most splits of a row, and the numbers beside a head's vector
# (`serving.kernels.triton.attention_work.AttentionWork.bytes`).
ATTENTION_SPLITS, ATTENTION_NUMBERS = 32, 8
# Planes of an adapter's v in small and in large steps (`lora_kernels.ops.shrink`).
DECODE_PLANES, PREFILL_PLANES = 16, 4
# Sampling, per token of the vocabulary and sample: counts and adjusted logits, then a copy for log probabilities.
SAMPLER_BYTES = 4 + 4 + 4 + 4
# Host copies of adapters: a share of the memory that the process may still take, and at most so much.
HOST_SHARE, HOST_MOST = 0.25, 32 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The largest steps of a replica: rows (tokens), samples (sequences), rows of drafts, the longest context, recorded
    graphs."""

    rows: int
    samples: int
    drafts: int = 0
    max_len: int
    graphs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What KV and adapters are allocated in.

    block: bytes of a KV block of `block_tokens` tokens
    page: bytes of the weights of `page_rank` ranks
    slots: adapters resident at once
    """

    block: int
    block_tokens: int
    page: int
    page_rank: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Memory of a GPU in bytes: all of it, and what is free when the replica starts."""

    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """What a card's memory is for, in bytes; `blocks` KV blocks and `pages` adapter pages are what was derived."""

    card: Card
    fraction: float
    weights: int
    reserve: Mapping[str, int]
    units: Units
    blocks: int
    pages: int

    @property
    def used(self) -> int:
        """Return all that the replica means to take."""
        return self.weights + sum(self.reserve.values()) + self.blocks * self.units.block + self.pages * self.units.page

    def table(self) -> list[str]:
        """Return one line for each purpose: its MiB, its name and what it holds."""
        units = self.units
        tokens, adapters = (self.blocks - 1) * units.block_tokens, self.pages * units.page_rank // 16
        rows = [
            ("weights", self.weights, ""),
            *((name, nbytes, "") for name, nbytes in self.reserve.items()),
            ("KV cache", self.blocks * units.block, f"{self.blocks} blocks, {tokens} tokens"),
            ("adapters", self.pages * units.page, f"{adapters} of rank 16, in {units.slots} slots"),
            ("together", self.used, f"of {self.card.total // MIB} MiB, {self.card.free // MIB} free at the start"),
        ]
        return [f"{nbytes // MIB:7d} MiB  {name:24}{note}".rstrip() for name, nbytes, note in rows]


def weight_bytes(model: ModelConfig, itemsize: int, *, eight_bits: bool) -> int:
    """Return the bytes of a model's weights in a type of `itemsize` bytes.

    eight_bits: the layers' linears stay in 4 or 8 bits; the scales of 8-bit floats count as one float32 per output,
        which is the most
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    qkv = model.q_size + 2 * model.kv_size
    numbers = hidden * (qkv + model.q_size + 3 * inner)
    outputs = qkv + 2 * hidden + 2 * inner
    linears = numbers * itemsize
    if eight_bits:
        form = model.quantization
        linears = _integer_bytes(form, numbers, outputs) if isinstance(form, Integers) else numbers + 4 * outputs
    norms = 4 if model.family.output_norms else 2
    around = (1 if model.tied_embeddings else 2) * model.vocab_size * hidden + (norms * model.num_layers + 1) * hidden
    return model.num_layers * linears + around * itemsize


def _integer_bytes(form: Integers, numbers: int, outputs: int) -> int:
    """Return the most that linears in integers take: a scale and a zero of 16 bits for each group, or, for GGUF's
    blocks, of 32 bits for each 16 inputs, its smallest groups."""
    if form.method == "gguf":
        return numbers * form.bits // 8 + 8 * numbers // 16
    scales = outputs if form.group is None else numbers // form.group
    return numbers * form.bits // 8 + 4 * scales


def step_bytes(model: ModelConfig, steps: Steps, itemsize: int, max_rank: int) -> dict[str, int]:
    """Return what steps take beside weights, KV and adapters, by purpose.

    Activations count twice: while a graph is recorded, its own memory stands beside that of the run before it.
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    # Residual, normed, two deltas; gate and up, their product; queries twice, keys and values: all that one layer and
    # the next hold at once.
    row = 4 * hidden + 3 * inner + 2 * (model.q_size + model.kv_size)
    planes = max(steps.rows * PREFILL_PLANES, steps.samples * DECODE_PLANES)
    attention = model.num_heads * (model.head_dim + 2) + ATTENTION_NUMBERS
    return {
        "activations": 2 * (steps.rows * row * itemsize + planes * 3 * max_rank * 4),
        "logits and sampling": (steps.samples + steps.drafts) * model.vocab_size * (itemsize + SAMPLER_BYTES),
        "attention": (steps.samples * ATTENTION_SPLITS + 1) * attention * 4,
        "positions and buffers": steps.max_len * model.head_dim * 4 * len(model.ropes) + steps.rows * hidden * itemsize,
        "graphs": steps.graphs * GRAPH_BYTES,
        "cuBLAS and code": CUBLAS_BYTES + CODE_BYTES,
    }


def plan_card(
    card: Card,
    units: Units,
    *,
    weights: int,
    reserve: Mapping[str, int],
    fraction: float,
    kv_bytes: int = 0,
    adapter_bytes: int = 0,
) -> CardPlan:
    """Divide a card: `fraction` of its memory, less what others use of it, is for this replica.

    kv_bytes, adapter_bytes: fixed by a flag; 0: a quarter of what is left goes to adapters and the rest to KV

    Raises ConfigError, saying what to change, when that leaves no room for two KV blocks and one adapter page.
    """
    limit = int(card.total * fraction) - (card.total - card.free)
    left = limit - weights - sum(reserve.values())
    if adapter_bytes == 0:
        # Where KV is fixed, adapters may take the rest.
        share = max(left - kv_bytes, 0) if kv_bytes else int(max(left, 0) * ADAPTER_SHARE)
        adapter_bytes = min(max(share, units.page), units.slots * PAGES_A_SLOT * units.page)
    pages = adapter_bytes // units.page
    blocks = (kv_bytes or max(left - pages * units.page, 0)) // units.block
    plan = CardPlan(
        card=card, fraction=fraction, weights=weights, reserve=reserve, units=units, blocks=blocks, pages=pages
    )
    if blocks < 2 or pages < 1 or plan.used > limit:
        raise ConfigError(_no_room(plan, limit))
    return plan


def host_copies(available: int) -> int:
    """Return the bytes for decrypted copies of adapters in host memory, of which so much is `available`.

    The rest is for what loads decrypt, for the page cache of packages, and for other processes.
    """
    return min(int(available * HOST_SHARE), HOST_MOST)


def _no_room(plan: CardPlan, limit: int) -> str:
    least = max(plan.blocks, 2) * plan.units.block + max(plan.pages, 1) * plan.units.page
    needed = plan.weights + sum(plan.reserve.values()) + least
    return (
        f"this model does not fit: weights of {plan.weights // MIB} MiB, steps of {sum(plan.reserve.values()) // MIB} "
        f"MiB, and {least // MIB} MiB of KV cache and adapters are {needed // MIB} MiB, and of the GPU's "
        f"{plan.card.total // MIB} MiB ({plan.card.free // MIB} free) --gpu-memory-fraction {plan.fraction:g} gives "
        f"{max(limit, 0) // MIB}. End what else uses the GPU, serve a checkpoint in 8-bit floats, or change "
        "--gpu-memory-fraction, --max-batched-tokens, --max-num-seqs, --kv-cache-mb or --adapter-memory-mb"
    )
