"""Executes step plans on a GPU: `launch` returns at once, `result` waits; steps replay recorded graphs.

A step is an upload, a replay of the forward pass, and about ten launches for its tokens (`head`). A row whose token the
host does not know yet takes it from the previous step's samples, which are still on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from lora_kernels import BatchMetadata, LoraPair, MetadataBuffers
from serving.kernels.triton.attention_prefill import queries_a_tile
from serving.kernels.upload import StepBuffer
from serving.kv.paged import PagedKV
from serving.models.linears import TorchLinears
from serving.models.llama_gpu import DeviceStep, GpuLlama
from serving.ports import ResidentAdapters
from serving.runner.graphs import Graphs
from serving.runner.head import GpuStep, Head
from serving.runner.packing import IN_FLIGHT
from serving.runner.rows import PackedRows, RowLayout, pack_rows
from serving.runner.step_graphs import Shape, StepGraphs, decode_rows
from serving.runner.tables import DeviceTables
from serving.steps import StepPlan
from serving.trace import NO_TRACE, Tracer

# Rows of an adapter tile in decode graphs, the fewest that a tensor core fills.
_DECODE_TILE_ROWS = 16
# Predicted: 16-bit products of an H100 take as long as its reading of the weights at 295 rows (990 TFLOP/s, 3.35 TB/s).
_CHEAP_ROWS = 256


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A step whose rows lie in the buffer's host side, for every rank of a replica.

    units: how many of the uploaded units to look at; the device knows how many there are
    entries: new entries of block tables
    slots, counts: the adapter slot and the rows of each chunk
    copies: pairs of KV blocks to copy before anything else
    """

    shape: Shape
    units: int
    entries: int
    slots: Sequence[int]
    counts: Sequence[int]
    copies: Sequence[tuple[int, int]]


class GpuRunner:
    """`serving.ports.Runner` on one GPU; at most one launched step may be unread.

    max_rows: the most tokens of a step
    max_samples: the most sequences of a step; max_draft_rows: the most tokens of drafts
    max_blocks: the longest block table
    graphs: records the forward pass of each shape of steps; None: forward passes are launched kernel by kernel
    """

    trace: Tracer = NO_TRACE
    paces_loads = False
    elastic_memory = False
    drafts_in_turn = False
    cheap_rows = _CHEAP_ROWS
    depth = 1  # the host plans a step and commits the last while the device computes

    def __init__(
        self,
        model: GpuLlama,
        kv: PagedKV,
        adapters: ResidentAdapters,
        *,
        max_rows: int,
        max_samples: int,
        max_draft_rows: int = 0,
        max_blocks: int,
        graphs: Graphs | None,
    ) -> None:
        self.model, self.kv, self.adapters = model, kv, adapters
        self.linears = TorchLinears(model.weights)
        self._device = device = kv.data.device
        self.max_draft_rows = max_draft_rows
        config, embed = model.config, model.weights.embed
        tile = queries_a_tile(config.num_heads // config.num_kv_heads, embed.dtype)
        self._layout = RowLayout(max_rows, max_samples, kv.block_size, tile)
        self._max_samples = max_samples
        self._tables = DeviceTables(max_samples, max_blocks, device)
        self._head = Head(model, adapters, max_rows, max_samples + max_draft_rows, device)
        self.buffer = StepBuffer({**self._layout.shapes, **self._head.shapes, **self._tables.shapes}, device)
        self._hidden = torch.zeros(max_rows, embed.shape[1], dtype=embed.dtype, device=device)
        pages = adapters.pool.spec.max_pages
        decodes = decode_rows(max_samples)[-1]
        # By whether a step has chunks: single tokens keep small tiles, however large those of a prefill are.
        self._lora = {
            False: MetadataBuffers(decodes, max_samples, device, max_pages=pages, tile_rows=_DECODE_TILE_ROWS),
            True: MetadataBuffers(max_rows, max_samples, device, max_pages=pages),
        }
        self._graphs = StepGraphs(max_rows, max_samples)
        if graphs is not None:
            self._record(graphs)

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def block_size(self) -> int:
        return self.kv.block_size

    def launch(self, plan: StepPlan) -> GpuStep:
        """Start a step of at least one chunk. Returns before it is computed."""
        try:
            self._head.finish()
            return self._launch(plan)
        except BaseException:
            self._tables.forget()
            raise

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero KV blocks: what a revoked adapter wrote must not outlive it."""
        self.kv.zero(list(blocks))

    def give_back(self, blocks: Iterable[int]) -> None:
        """Do nothing: memory is not elastic here."""

    def compute(self, work: GpuWork) -> BatchMetadata | None:
        """Launch the forward pass of the rows in the buffer's host side. Returns their adapters."""
        self.kv.copy(work.copies)
        self.buffer.upload(work.entries)
        self._tables.update(self.buffer.tensors["table_entries"], work.entries)
        shape, batch = work.shape, None
        if shape.adapted:
            batch = self._batch(shape, [*work.slots, -1], [*work.counts, shape.rows - sum(work.counts)])
        graph = self._graphs.find(shape)
        if graph is not None and (batch is None or batch.extras is None):  # graphs have no launches for extras
            graph.replay()
        else:
            self._forward(shape, work.units, batch)
        return batch

    def _launch(self, plan: StepPlan) -> GpuStep:
        step = pack_rows(plan.chunks)
        batch = self.compute(self._lay_out(plan, step))
        return self._head.launch(plan, step, self._hidden, self.buffer.tensors, batch)

    def _lay_out(self, plan: StepPlan, step: PackedRows) -> GpuWork:
        """Write a step's rows to the buffer's next host side. Returns the rest of what computing them needs."""
        slots = [self.adapters.slot(chunk.sequence.digest) for chunk in step.chunks]
        shape = self._graphs.shape_of(
            step.rows, mixes=step.tokens < len(step.chunks), adapted=any(slot >= 0 for slot in slots)
        )
        arrays = self.buffer.begin()
        units = self._layout.fill(arrays, step, self._sources(step), self._tables, shape.rows)
        self._head.fill(arrays, step)
        entries = self._tables.fill(arrays["table_entries"])
        return GpuWork(shape, units, entries, slots, step.counts.tolist(), plan.copies)

    def _sources(self, step: PackedRows) -> list[int]:
        """Return the place of each token in flight among the samples of the previous step, in the order of rows."""
        if IN_FLIGHT not in step.token_ids:
            return []
        place = self._head.place
        return [place(chunk.sequence) for chunk in step.chunks if chunk.known_end > len(chunk.sequence.tokens)]

    def _batch(self, shape: Shape, slots: list[int], counts: list[int]) -> BatchMetadata:
        return BatchMetadata.build(slots, counts, self.adapters.pool, out=self._lora[shape.mixes])

    def _forward(self, shape: Shape, units: int, adapters: BatchMetadata | None) -> None:
        """Launch the forward pass without waiting. The final hidden states of all rows go to `_hidden`.

        units: how many of the uploaded units to look at; the device knows how many there are
        """
        t, rows = self.buffer.tensors, shape.rows
        sources = t["sources"][:rows]
        ids = torch.where(sources >= 0, self._head.tokens[sources.clamp(min=0)], t["token_ids"][:rows])
        ids = ids.clamp(min=0)  # a row that failed has no token; what follows it is dropped
        step = DeviceStep(
            token_ids=ids,
            positions=t["positions"][:rows],
            slots=t["slots"][:rows],
            row_tables=t["row_tables"][:rows],
            units=t["units"][:units],
            tables=self._tables.device,
            counts=t["counts"],
        )
        self.model.forward(step, self.kv, adapters, self._hidden[:rows])

    def _record(self, graphs: Graphs) -> None:
        """Record a graph for each shape; those with adapters with an adapter of zeros. Kernels read their work from
        device memory."""
        pool = self.adapters.pool
        site = pool.spec.sites[0]
        nothing = LoraPair(torch.zeros(1, site.in_features), torch.zeros(site.slices[0], 1), 1.0)
        pool.load(0, {(0, site.name, 0): nothing})
        with torch.inference_mode():
            self._graphs.record(graphs, self._prepare)
        pool.evict(0)

    def _prepare(self, shape: Shape) -> Callable[[], object]:
        """Upload a step of padding rows that reaches every kernel of a shape; returns its forward pass."""
        arrays, rows = self.buffer.begin(), shape.rows
        tokens = min(rows - shape.mixes, self._max_samples)
        self._layout.fill_padding(arrays, self._tables.padding, rows)
        arrays["counts"][:3] = tokens, int(shape.mixes), rows
        arrays["units"][0] = rows - 1, 1, 0, self._tables.padding
        self.buffer.upload(0)
        units = self._layout.most_units(rows) if shape.mixes else 0
        batch = self._batch(shape, [0], [rows]) if shape.adapted else None
        return partial(self._forward, shape, units, batch)
