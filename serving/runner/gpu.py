"""Executes step plans on a GPU: `launch` returns at once, `result` waits; single-token steps replay captured graphs.

A row whose token the host does not know yet takes it from the previous step's samples, which are still on the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch

from lora_kernels import BatchMetadata, LoraPair, MetadataBuffers
from serving.kernels.triton.attention_prefill import queries_a_tile
from serving.kv.paged import PagedKV
from serving.models.llama_gpu import DeviceStep, GpuLlama
from serving.ports import ResidentAdapters
from serving.runner.graphs import Graph, Graphs
from serving.runner.head import GpuStep, Head
from serving.runner.packing import IN_FLIGHT, PackedStep, pack_step
from serving.runner.upload import Int32s, StepBuffer
from serving.steps import StepPlan
from serving.trace import NO_TRACE, Tracer

# Batch sizes with a captured graph; sizes between them are padded. Above the largest, launch costs do not matter.
GRAPH_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


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
        self._tile = queries_a_tile(model.config.num_heads // model.config.num_kv_heads, model.weights.embed.dtype)
        self._head = Head(model, max_rows, max_samples, self._device)
        self._buffer = StepBuffer(
            {
                "counts": (8,),
                **dict.fromkeys(("token_ids", "sources", "positions", "slots", "row_tables"), (max_rows,)),
                **self._head.shapes,
                # One tile for each full set of positions, and a partial one for each chunk.
                "units": (max_samples + -(-max_rows // self._tile), 4),
                "tables": (max_samples, max_blocks),
            },
            self._device,
        )
        embed = model.weights.embed
        self._hidden = torch.zeros(max_rows, embed.shape[1], dtype=embed.dtype, device=self._device)
        self._lora = MetadataBuffers(max_rows, max_samples, self._device, max_pages=adapters.pool.spec.max_pages)
        self._graphs: dict[tuple[int, bool], Graph] = {}
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
        units = self._fill(plan, step, counts, rows)
        self._buffer.upload()
        batch = None
        if adapted:
            padding = rows - step.rows
            batch = BatchMetadata.build(
                slots + [-1] * padding, counts.tolist() + [1] * padding, self.adapters.pool, out=self._lora
            )
        if captured:
            self._graphs[captured, adapted].replay()
        else:
            self._forward(units, rows, batch)
        return self._head.launch(plan, step, self._hidden, self._buffer.tensors)

    def zero(self, blocks: Iterable[int]) -> None:
        """Zero KV blocks: what a revoked adapter wrote must not outlive it."""
        self.kv.zero(list(blocks))

    def give_back(self, blocks: Iterable[int]) -> None:
        """Do nothing: memory is not elastic here."""

    def _graph_rows(self, rows: int, adapted: bool) -> int | None:
        """Return the smallest captured batch size for `rows` rows, None if there is none."""
        return next((n for n in GRAPH_ROWS if n >= rows and (n, adapted) in self._graphs), None)

    def _fill(self, plan: StepPlan, step: PackedStep, counts: Int32s, rows: int) -> int:
        """Write the step, padded to `rows`, for `upload`. Returns the number of units, the tiles of chunks.

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
        self._head.fill(a, step)
        for chunk in range(chunks):
            begin, end = step.chunk_tables[chunk], step.chunk_tables[chunk + 1]
            a["tables"][chunk, : end - begin] = step.blocks[begin:end]
        listed = [
            (first + at, min(self._tile, count - at), start + at, chunk)
            for chunk, (first, count, start) in enumerate(
                zip(step.chunk_rows.tolist(), counts.tolist(), step.chunk_starts.tolist(), strict=False)
            )
            if chunk >= tokens
            for at in range(0, count, self._tile)
        ]
        if listed:
            a["units"][: len(listed)] = listed
        a["row_tables"][:tokens] = np.arange(tokens)
        a["counts"][:3] = tokens, len(listed), used
        return len(listed)

    def _sources(self, plan: StepPlan, step: PackedStep) -> Int32s:
        """Return, for each row, which sample of the previous step is its token; -1 where the host knows the token."""
        sources = np.full(step.rows, -1, np.int32)
        for row in np.flatnonzero(np.asarray(step.token_ids) == IN_FLIGHT).tolist():
            chunk = int(np.searchsorted(step.chunk_rows, row, side="right")) - 1
            sources[row] = self._head.place(plan.chunks[chunk].sequence)
        return sources

    def _forward(self, units: int, rows: int, adapters: BatchMetadata | None) -> None:
        """Launch the forward pass without waiting. The final hidden states of all rows go to `_hidden`."""
        t = self._buffer.tensors
        sources = t["sources"][:rows]
        ids = torch.where(sources >= 0, self._head.tokens[sources.clamp(min=0)], t["token_ids"][:rows])
        step = DeviceStep(
            token_ids=ids,
            positions=t["positions"][:rows],
            slots=t["slots"][:rows],
            row_tables=t["row_tables"][:rows],
            units=t["units"][:units],
            tables=t["tables"],
            counts=t["counts"],
        )
        self.model.forward(step, self.kv, adapters, self._hidden[:rows])

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
                arrays["row_tables"][:rows] = 0
                arrays["counts"][:3] = rows, 0, rows
                arrays["sources"][:rows] = -1
                self._buffer.upload()
                for adapted in (False, True):
                    batch = BatchMetadata.build([0] * rows, [1] * rows, pool, out=self._lora) if adapted else None
                    self._graphs[rows, adapted] = graphs.record(partial(self._forward, 0, rows, batch))
        pool.evict(0)
