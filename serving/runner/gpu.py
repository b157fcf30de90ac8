"""Executes step plans on a GPU: `launch` returns at once, `result` waits; single-token steps replay captured graphs.

A row whose token the host does not know yet takes it from the previous step's samples, which are still on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from lora_kernels import BatchMetadata, LoraPair, MetadataBuffers
from serving.kernels.triton.argmax import argmax
from serving.kernels.triton.attention import queries_a_tile
from serving.kv.paged import PagedKV
from serving.models.llama_gpu import DeviceStep, GpuLlama
from serving.ports import ResidentAdapters
from serving.runner.graphs import Graph, Graphs, Outputs
from serving.runner.packing import IN_FLIGHT, PackedStep, pack_step
from serving.runner.upload import Int32s, StepBuffer
from serving.sampling import embed, sample, score
from serving.steps import SampledToken, StepPlan
from serving.trace import NO_TRACE, Tracer

# Batch sizes with a captured graph; sizes between them are padded. Above the largest, launch costs do not matter.
GRAPH_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True, eq=False)
class GpuStep:
    """A launched step. Call `result` once, from the engine thread.

    best: host memory that the device fills with each sample's likeliest token, or -1
    special: logits of the sequences that the sampler decides on
    vectors: final hidden states of sequences that asked for an embedding, then of prompt rows that `head` scores
    """

    plan: StepPlan
    step: PackedStep
    best: torch.Tensor
    special: torch.Tensor | None
    vectors: torch.Tensor | None
    head: Callable[[torch.Tensor], torch.Tensor]
    done: torch.cuda.Event | None
    aside: torch.cuda.Stream | None  # on the step's own, samplers would wait for the step after it

    def result(self) -> Sequence[SampledToken]:
        """Wait for the device. Returns one answer per sampling chunk, in plan order."""
        if self.done is not None:
            self.done.synchronize()
        sequences = self.step.sampling
        answers = {
            id(sequence): SampledToken(token if token >= 0 else None)
            for sequence, token in zip(sequences, self.best[: len(sequences)].tolist(), strict=True)
        }
        with torch.cuda.stream(self.aside):
            if self.special is not None:
                chosen = [sequences[place] for place in self.step.special()]
                answers.update(zip(map(id, chosen), sample(self.special.float(), chosen), strict=True))
            if self.vectors is not None:
                embeds = len(self.step.embedding)
                vectors = embed(self.vectors[:embeds].float())
                answers.update(zip(map(id, self.step.embedding), vectors, strict=True))
                score(self.step.scoring, self.vectors[embeds:], self.head)
        return [answers[id(chunk.sequence)] for chunk in self.plan.chunks if chunk.samples]


class GpuRunner:
    """`serving.ports.Runner` on one GPU; at most one launched step may be unread.

    max_rows: the most tokens of a step
    max_samples: the most sequences of a step
    max_blocks: the longest block table
    graphs: captures steps of single tokens for each batch size; None: they are launched like any other
    """

    trace: Tracer = NO_TRACE
    paces_loads = False
    elastic_memory = False
    depth = 1  # the host plans a step and commits the last while the device computes

    def __init__(
        self,
        model: GpuLlama,
        kv: PagedKV,
        adapters: ResidentAdapters,
        *,
        max_rows: int,
        max_samples: int,
        max_blocks: int,
        graphs: Graphs | None,
    ) -> None:
        self.model, self.kv, self.adapters = model, kv, adapters
        self._device = kv.data.device
        self._tile = queries_a_tile(model.config.num_heads // model.config.num_kv_heads)
        self._buffer = StepBuffer(
            {
                **dict.fromkeys(("token_ids", "sources", "positions", "slots"), (max_rows,)),
                "sample_rows": (max(max_rows, max_samples),),
                "special": (max_samples,),
                # One tile for each full set of positions, and a partial one for each chunk.
                "units": (max_samples + -(-max_rows // self._tile), 4),
                "tables": (max_samples, max_blocks),
            },
            self._device,
        )
        cuda = self._device.type == "cuda"
        self._aside = torch.cuda.Stream(self._device) if cuda else None
        self._best = torch.zeros(max_samples, dtype=torch.int32, device=self._device)
        self._answers = [torch.zeros(max_samples, dtype=torch.int32, pin_memory=cuda) for _ in range(2)]
        self._lora = MetadataBuffers(max_rows, max_samples, self._device, max_pages=adapters.pool.spec.max_pages)
        self._order: dict[int, int] = {}  # sequence → its place among the samples of the last step
        self._graphs: dict[tuple[int, bool], tuple[Graph, Outputs]] = {}
        if graphs is not None:
            self._capture(graphs, max_samples)

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def block_size(self) -> int:
        return self.kv.block_size

    def launch(self, plan: StepPlan) -> GpuStep:
        """Start a step of at least one chunk. Returns before it is computed."""
        step = pack_step(plan.chunks, self.kv.block_size)
        first = np.frombuffer(step.chunk_rows, np.int32)
        counts: Int32s = first[1:] - first[:-1]
        slots = [self.adapters.slot(chunk.sequence.digest) for chunk in plan.chunks]
        adapted = any(slot >= 0 for slot in slots)
        captured = self._graph_rows(step.rows, adapted) if int(counts.max()) == 1 else None
        rows = captured or step.rows
        tokens, units = self._fill(plan, step, counts, rows)
        self._buffer.upload()
        batch = None
        if adapted:
            padding = rows - step.rows
            batch = BatchMetadata.build(
                slots + [-1] * padding, counts.tolist() + [1] * padding, self.adapters.pool, out=self._lora
            )
        if captured:
            graph, (logits, final) = self._graphs[captured, adapted]
            graph.replay()
        else:
            wanted, samples = len(step.sample_rows), len(step.sampling)
            logits, final = self._compute(tokens, units, rows, wanted, samples, batch)
        return self._collect(plan, step, logits, final)

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero KV blocks: what a revoked adapter wrote must not outlive it."""
        self.kv.zero(list(blocks))

    def give_back(self, blocks: Iterable[int]) -> None:
        """Do nothing: memory is not elastic here."""

    def _graph_rows(self, rows: int, adapted: bool) -> int | None:
        """Return the smallest captured batch size for `rows` rows, None if there is none."""
        return next((n for n in GRAPH_ROWS if n >= rows and (n, adapted) in self._graphs), None)

    def _fill(self, plan: StepPlan, step: PackedStep, counts: Int32s, rows: int) -> tuple[int, int]:
        """Write the step, padded to `rows`, for `upload`. Returns the counts of leading single-token rows and of units.

        A padding row is a single token whose KV goes to block 0, the padding block.
        """
        a, used, chunks = self._buffer.begin(), step.rows, len(counts)
        tokens = int(np.argmax(counts > 1)) if (counts > 1).any() else chunks
        for name, values in (
            ("token_ids", np.maximum(step.token_ids, 0)),
            ("sources", self._sources(plan, step)),
            ("positions", step.positions()),
            ("slots", step.slots(self.kv.block_size)),
        ):
            a[name][:used], a[name][used:rows] = values, -1 if name == "sources" else 0
        a["sample_rows"][: len(step.sample_rows)], a["sample_rows"][len(step.sample_rows) : rows] = step.sample_rows, 0
        for chunk in range(chunks):
            begin, end = step.chunk_tables[chunk], step.chunk_tables[chunk + 1]
            a["tables"][chunk, : end - begin] = step.blocks[begin:end]
        a["tables"][chunks : chunks + rows - used, 0] = 0
        listed = [
            (first + at, min(self._tile, count - at), start + at, chunk)
            for chunk, (first, count, start) in enumerate(
                zip(step.chunk_rows.tolist(), counts.tolist(), step.chunk_starts.tolist(), strict=False)
            )
            for at in range(0, count, self._tile)
        ]
        listed += [(row, 1, 0, row) for row in range(used, rows)]
        a["units"][: len(listed)] = listed
        special = step.special()
        a["special"][: len(special)] = special
        return (rows if tokens == chunks else tokens), len(listed)

    def _sources(self, plan: StepPlan, step: PackedStep) -> Int32s:
        """Return, for each row, which sample of the previous step is its token; -1 where the host knows the token."""
        sources = np.full(step.rows, -1, np.int32)
        for row in np.flatnonzero(np.asarray(step.token_ids) == IN_FLIGHT).tolist():
            chunk = int(np.searchsorted(step.chunk_rows, row, side="right")) - 1
            sources[row] = self._order[id(plan.chunks[chunk].sequence)]
        return sources

    def _compute(
        self, tokens: int, units: int, rows: int, wanted: int, samples: int, adapters: BatchMetadata | None
    ) -> Outputs:
        """Launch the forward pass without waiting. Returns the logits of the sampled rows, whose argmax goes to
        `_best`, and the final hidden states of all wanted rows."""
        t = self._buffer.tensors
        sources = t["sources"][:rows]
        ids = torch.where(sources >= 0, self._best[sources.clamp(min=0)], t["token_ids"][:rows])
        step = DeviceStep(tokens, ids, t["positions"][:rows], t["slots"][:rows], t["units"][:units], t["tables"])
        final = self.model.forward(step, self.kv, adapters)[t["sample_rows"][:wanted]]
        logits = self.model.logits(final[:samples])
        if samples:
            argmax(logits, self._best[:samples])
        return logits, final

    def _collect(self, plan: StepPlan, step: PackedStep, logits: torch.Tensor, final: torch.Tensor) -> GpuStep:
        """Start the copies of what the step samples to the host."""
        sampling = step.sampling
        self._answers.reverse()
        best, count = self._answers[0], len(sampling)
        best.copy_(self._best, non_blocking=True)
        self._order = {id(sequence): place for place, sequence in enumerate(sampling)}
        done = None
        # Copied, because the next replay overwrites the graph's own tensors.
        special = self._buffer.tensors["special"][: len(step.special())]
        chosen = logits[special] if len(special) else None
        vectors = final[count : len(step.sample_rows)].clone() if len(step.sample_rows) > count else None
        if self._device.type == "cuda":
            done = torch.cuda.Event()
            done.record()
        return GpuStep(plan, step, best, chosen, vectors, self.model.logits, done, self._aside)

    def _capture(self, graphs: Graphs, max_samples: int) -> None:
        """Capture one graph for each batch size, without and with adapters; kernels read their work from device memory.

        The launches with adapters are recorded with an adapter of zeros.
        """
        pool = self.adapters.pool
        site = pool.spec.sites[0]
        nothing = LoraPair(torch.zeros(1, site.in_features), torch.zeros(site.slices[0], 1), 1.0)
        pool.load(0, {(0, site.name, 0): nothing})
        with torch.inference_mode():
            for rows in sorted((n for n in GRAPH_ROWS if n <= max_samples), reverse=True):
                arrays = self._buffer.begin()
                arrays["units"][:rows] = [(row, 1, 0, row) for row in range(rows)]
                arrays["sources"][:rows] = -1
                self._buffer.upload()
                for adapted in (False, True):
                    batch = BatchMetadata.build([0] * rows, [1] * rows, pool, out=self._lora) if adapted else None
                    compute = partial(self._compute, rows, rows, rows, rows, rows, batch)
                    self._graphs[rows, adapted] = graphs.record(compute)
        pool.evict(0)
