"""Executes step plans on the CPU: one C call computes the whole forward pass of a step."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import torch

from lora_kernels import BatchMetadata, native
from lora_kernels.memory import lazy_zeros
from serving.core import Sequence as Running
from serving.kernels.forward import DTYPE_CODES, PARTS, ROW_SLACK, SITES, CModel, CStep, CTimes, forward, scratch_bytes
from serving.kernels.library import KernelLibrary
from serving.kernels.linear import bound_rows
from serving.kv.storage import BlockedKV
from serving.models.config import ModelConfig
from serving.models.linears import PackedLinears
from serving.models.llama import capped, embed_scale
from serving.models.packed import PackedModel
from serving.models.rope import rope_halves
from serving.ports import ResidentAdapters
from serving.runner.adapters import StepBatches, extras_of
from serving.runner.extras import StepExtras
from serving.runner.packing import PackedStep, pack_step
from serving.sampling import embed, score, verify
from serving.steps import ComputedStep, SampledToken, StepPlan
from serving.trace import NO_TRACE, Tracer

# From this ratio of computed rows to sampled rows on, the last layer computes the sampled rows alone.
_TRIMS_FROM = 2
_CPU = torch.device("cpu")


class CpuRunner:
    """`serving.ports.Runner` over packed weights: `launch` returns when the step is computed.

    max_rows: the most tokens of a step; max_samples: the most sequences; max_draft_rows: the most tokens of drafts
    trace: receives the times of a step's parts
    """

    trace: Tracer = NO_TRACE
    depth = 0
    paces_loads = True
    drafts_in_turn = True
    elastic_memory = True

    def __init__(
        self,
        library: KernelLibrary,
        model: PackedModel,
        kv: BlockedKV,
        adapters: ResidentAdapters,
        *,
        max_rows: int,
        max_samples: int,
        max_draft_rows: int = 0,
        max_len: int,
        threads: int,
    ) -> None:
        self.config, self.kv, self.adapters = model.config, kv, adapters
        self._library, self._threads, self._weights = library, threads, model
        self._batches = StepBatches(adapters)
        self.linears = PackedLinears(library, model)
        self.max_draft_rows = max_draft_rows
        self.cheap_rows = bound_rows(library, model.head.dtype)
        max_samples += max_draft_rows
        self._buffers = _buffers(model.config, max_rows)
        self._ropes = {rope: rope_halves(rope, max_len) for rope in model.config.ropes}
        self._logits = lazy_zeros((max_samples, model.config.vocab_size), torch.float32, _CPU)
        self._final = lazy_zeros((max(max_rows, max_samples), model.config.hidden_size), torch.float32, _CPU)
        self._best = (ctypes.c_int32 * max_samples)()
        self._samples = 0
        # The fields that are the same in all steps. A step reads all weights and empties the caches, so that every
        # Python call between two steps costs more than usual.
        self._step = CStep(
            final=self._final.data_ptr(),
            logits=self._logits.data_ptr(),
            best=ctypes.addressof(self._best),
            threads=threads,
        )
        self._model = self._describe(max_rows, max_len)
        self._scratch = _aligned(scratch_bytes(library, self._model, threads))
        self._model.scratch = self._scratch.data_ptr()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def block_size(self) -> int:
        return self.kv.block_size

    @property
    def logits(self) -> torch.Tensor:
        """float32 [samples, vocab] of the last step, until the next; the sampler changes rows that it decides on."""
        return self._logits[: self._samples]

    def launch(self, plan: StepPlan) -> ComputedStep:
        """Launch as `StepRunner.launch` and compute the step."""
        return ComputedStep(self.execute(plan))

    def execute(self, plan: StepPlan) -> Sequence[SampledToken]:
        """Compute a step: write KV for all chunks and return one answer per sampling chunk, in plan order."""
        span = self.trace.span
        self.kv.copy(plan.copies)
        with span("pack"):
            step = pack_step(plan.chunks, self.kv.block_size)
            batch = self._batches.of(plan.chunks)
            trims = step.rows >= _TRIMS_FROM * len(step.sample_rows)
            wanted = batch.pick(step.sample_rows) if batch is not None and trims else None
        with span("forward") as figures:
            times = self._forward(step, batch, wanted, trims=trims, timed=figures is not None)
            if figures is not None:
                figures.update(times)
        with span("sample"):
            answers = dict(zip(map(id, step.sampling), self._sample(step), strict=True))
        if step.embedding:
            first = step.samples
            vectors = embed(self._final[first : first + len(step.embedding)])
            answers.update(zip(map(id, step.embedding), vectors, strict=True))
        if step.scoring:
            with span("score"):
                first = step.samples + len(step.embedding)
                score(step.scoring, self._final[first : len(step.sample_rows)], self._head)
        return [answers[id(chunk.sequence)] for chunk in plan.chunks if chunk.samples]

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero KV blocks: what a revoked adapter wrote must not outlive it."""
        self.kv.zero(blocks)

    def give_back(self, blocks: Iterable[int]) -> None:
        """Return the memory of free KV blocks to the system."""
        self.kv.give_back(blocks)

    def _forward(
        self,
        step: PackedStep,
        batch: BatchMetadata | None,
        wanted: BatchMetadata | None,
        *,
        trims: bool,
        timed: bool,
    ) -> dict[str, float]:
        """Run the C forward pass.

        trims: compute the last layer for the sampled rows alone, with the adapters in `wanted`
        timed: return the milliseconds that the first thread spent on each part, otherwise an empty dict
        """
        times = CTimes() if timed else None
        self._samples = samples = step.samples
        embeds = len(step.embedding)
        if samples + embeds > len(self._best):
            raise ValueError(f"{samples + embeds} rows are sampled in one step, room is for {len(self._best)}")
        if len(step.sample_rows) > len(self._final):
            raise ValueError(f"{len(step.sample_rows)} rows are wanted in one step, room is for {len(self._final)}")
        c = self._step
        c.rows, c.chunks = step.rows, len(step.chunk_starts)
        c.samples, c.embeds = samples, len(step.sample_rows) - samples
        c.token_ids, c.blocks = step.token_ids.buffer_info()[0], step.blocks.buffer_info()[0]
        c.chunk_rows, c.chunk_starts = step.chunk_rows.buffer_info()[0], step.chunk_starts.buffer_info()[0]
        c.chunk_tables, c.sample_rows = step.chunk_tables.buffer_info()[0], step.sample_rows.buffer_info()[0]
        c.lora = None if batch is None else native.batch_address(batch)
        c.wanted_lora = None if wanted is None or not wanted.has_adapters else native.batch_address(wanted)
        extras = StepExtras.of(batch, step.sample_rows, self.config.num_layers)
        c.extras = None if extras is None else ctypes.addressof(extras.rows)
        c.wanted_extras = None if extras is None else ctypes.addressof(extras.wanted)
        c.trims = trims
        c.times = None if times is None else ctypes.addressof(times)
        forward(self._library, self._model, c)
        return {} if times is None else {f"{part}_ms": ns / 1e6 for part, ns in zip(PARTS, times.ns, strict=True)}

    def _head(self, sequence: Running, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._weights.head(hidden, threads=self._threads)
        if (extras := extras_of(self.adapters, sequence)) is not None:
            extras.logits(logits, hidden)
        return capped(logits, self.config.logit_cap)

    def _sample(self, step: PackedStep) -> list[SampledToken]:
        """Return the kernel's argmax for plain greedy rows and the sampler's answers for the others."""
        return verify(self._best[: step.samples], self.logits, step.sampling, step.drafts, step.special())

    def _describe(self, max_rows: int, max_len: int) -> CModel:
        config, weights, kv, pool = self.config, self._weights, self.kv, self.adapters.pool
        for index, (layer, kind) in enumerate(zip(weights.layers, config.layers, strict=True)):
            layer.rope = None if kind.rope is None else self._ropes[kind.rope].data_ptr()
            layer.window = kind.window or 0
            for site, name in enumerate(SITES):
                layer.lora[site] = native.site_address(pool, name, index)
        lora_scratch = max(native.scratch_bytes(pool, name, max_rows, self._threads) for name in SITES)
        self._lora_scratch = _aligned(lora_scratch)
        return CModel(
            hidden=config.hidden_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate=config.intermediate_size,
            vocab=config.vocab_size,
            layers=config.num_layers,
            max_rows=max_rows,
            max_positions=max_len,
            rotated=max((rope.dims for rope in config.ropes), default=0),
            gelu=config.family.activation == "gelu_tanh",
            eps=config.rms_norm_eps,
            embed_scale=embed_scale(config, torch.float32 if weights.exact else torch.bfloat16),
            score_scale=config.score_scale,
            score_cap=config.score_cap or 0.0,
            logit_cap=config.logit_cap or 0.0,
            embed=None if weights.embed is None else weights.embed.data_ptr(),
            embed_dtype=0 if weights.embed is None else DTYPE_CODES[weights.embed.dtype],
            norm=weights.norm.data_ptr(),
            head=weights.head.c,
            layer=ctypes.cast(weights.layers, ctypes.POINTER(type(weights.layers[0]))),
            lora_scratch=self._lora_scratch.data_ptr(),
            kv=kv.data.data_ptr(),
            kv_dtype=DTYPE_CODES[kv.data.dtype],
            num_blocks=len(kv.data),
            block_size=kv.block_size,
            **{name: buffer.data_ptr() for name, buffer in self._buffers.items()},
        )


def _buffers(config: ModelConfig, rows: int) -> dict[str, torch.Tensor]:
    """Allocate the work memory of a step, float32 [rows, width]; the system provides pages when first written."""
    widths = {
        "residual": config.hidden_size,
        "normed": config.hidden_size + ROW_SLACK,
        "qkv": config.q_size + 2 * config.kv_size,
        "attended": config.q_size + ROW_SLACK,
        "gate_up": max(2 * config.intermediate_size, config.hidden_size),
        "activated": config.intermediate_size + ROW_SLACK,
    }
    return {name: lazy_zeros((rows, width), torch.float32, _CPU) for name, width in widths.items()}


def _aligned(size: int, alignment: int = 64) -> torch.Tensor:
    memory = lazy_zeros((size + alignment,), torch.uint8, _CPU)
    return memory[-memory.data_ptr() % alignment :]
