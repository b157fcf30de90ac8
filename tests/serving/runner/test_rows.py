"""The rows and block tables of GPU steps, on the host: no kernel runs here."""

from __future__ import annotations

import itertools
import random
from functools import partial

import numpy as np
import pytest
import torch

from serving.core import Sequence
from serving.kernels.upload import StepBuffer
from serving.runner.packing import pack_step
from serving.runner.rows import RowLayout, pack_rows
from serving.runner.step_graphs import Shape, StepGraphs, decode_rows, mixed_rows
from serving.runner.tables import DeviceTables
from serving.steps import Chunk, StepPlan
from tests.serving.scheduler.fakes import planner, sequence

CPU = torch.device("cpu")
SIZE, ROWS, SEQUENCES, TILE = 4, 48, 6, 8


class Device:
    """What a runner uploads, as kernels would find it."""

    def __init__(self) -> None:
        self.layout = RowLayout(ROWS, SEQUENCES, SIZE, TILE)
        self.tables = DeviceTables(SEQUENCES, 40, CPU)
        self.buffer = StepBuffer({**self.layout.shapes, **self.tables.shapes}, CPU)
        self.arrays = self.buffer.tensors

    def upload(self, plan: StepPlan, rows: int = ROWS) -> int:
        """Uploads a step, padded to `rows`; returns the number of block ids that went up."""
        arrays = self.buffer.begin()
        step = pack_rows(plan.chunks)
        self.layout.fill(arrays, step, [0] * step.token_ids.count(-1), self.tables, rows)
        new = self.tables.fill(arrays["table_entries"])
        self.buffer.upload(new)
        self.tables.update(self.arrays["table_entries"], new)
        return new

    def check(self, plan: StepPlan, rows: int = ROWS) -> None:
        """The uploaded step is the plan's, single tokens first."""
        a = {name: tensor.numpy() for name, tensor in self.arrays.items()}
        chunks = [c for c in plan.chunks if c.count == 1] + [c for c in plan.chunks if c.count > 1]
        packed = pack_step(chunks, SIZE)  # the CPU's packing
        places = [(c.sequence.blocks, position) for c in chunks for position in range(c.start, c.end)]
        singles, units, used = a["counts"][:3]
        assert (singles, used) == (sum(c.count == 1 for c in chunks), packed.rows)
        assert a["token_ids"][:used].tolist() == packed.token_ids.tolist()
        assert a["positions"][:used].tolist() == [position for _, position in places]
        assert a["slots"][:used].tolist() == [blocks[p // SIZE] * SIZE + p % SIZE for blocks, p in places]
        for name, padding in (("token_ids", 0), ("sources", -1), ("positions", 0), ("slots", 0)):
            assert (a[name][used:rows] == padding).all()
        tables = self.tables.device.numpy()
        assert not tables[a["row_tables"][used:rows]].any()  # the padding block
        seen = np.zeros(used, np.int32)
        owners = [place for place, chunk in enumerate(chunks) for _ in range(chunk.count)]
        for row in range(singles):
            _check_table(tables[a["row_tables"][row]], chunks[row])
            seen[row] += 1
        for first, count, start, table in a["units"][:units].tolist():
            assert 1 <= count <= TILE and start == a["positions"][first]
            assert owners[first] == owners[first + count - 1]
            _check_table(tables[table], chunks[owners[first]])
            seen[first : first + count] += 1
        assert (seen == 1).all()


def _check_table(row: np.ndarray, chunk: Chunk) -> None:
    blocks = chunk.sequence.blocks
    assert row[: len(blocks)].tolist() == blocks


def _commit(plans: object, plan: StepPlan, rng: random.Random) -> None:
    for chunk in plan.chunks:
        samples = chunk.samples
        assert plans.commit(chunk, 0.0)  # type: ignore[attr-defined]
        if samples:
            chunk.sequence.tokens.append(rng.randrange(9))
            if chunk.sequence.output_tokens >= chunk.sequence.request.max_tokens:
                plans.finish(chunk.sequence)  # type: ignore[attr-defined]


def test_every_step_finds_its_blocks_through_preemptions_cached_prefixes_and_reused_rows() -> None:
    rng = random.Random(3)
    plans = planner(blocks=41, size=SIZE, budget=ROWS, seqs=SEQUENCES)
    device, preempted, cached = Device(), 0, 0
    waiting = [
        sequence([rng.randrange(2) for _ in range(rng.randint(1, 40))], tokens=rng.randint(1, 30)) for _ in range(60)
    ]
    for step in range(1500):
        if waiting and len(plans.waiting) < 3:
            plans.add(waiting.pop())
        plan = plans.plan(float(step))
        preempted += len(plan.preempted)
        cached += sum(chunk.start == chunk.sequence.computed > 0 and chunk.count > 1 for chunk in plan.chunks)
        if plan.chunks:
            rows = rng.randint(plan.tokens, ROWS)
            device.upload(plan, rows)
            device.check(plan, rows)
        _commit(plans, plan, rng)
    assert not waiting and not plans.sequences()
    assert preempted > 5 and cached > 5


def _running(length: int) -> Sequence:
    """A sequence that decodes at position `length`."""
    one = sequence(length + 1)
    one.blocks = [1 + n % 60 for n in range(length // SIZE + 1)]
    return one


@pytest.mark.parametrize("context", [16, 128])
def test_a_decode_sends_no_block_ids_but_new_ones_however_long_its_context_is(context: int) -> None:
    device, one = Device(), _running(context)
    for step in range(9):
        new = device.upload(StepPlan(chunks=[Chunk(one, context + step, 1)]), 1)
        assert new == (context // SIZE + 1 if step == 0 else int(step % SIZE == 0))
        one.tokens.append(5)
        if (context + step + 1) % SIZE == 0:
            one.blocks.append(61 + step)
    assert len(pack_rows([Chunk(one, context, 1)]).token_ids) == 1


def test_a_failed_step_leaves_nothing_half_written() -> None:
    device, one = Device(), _running(20)
    plan = StepPlan(chunks=[Chunk(one, 20, 1)])
    device.tables.rows_of([one])  # launched no further
    device.tables.forget()
    device.upload(plan, 1)
    device.check(plan, 1)


def test_a_step_of_too_many_sequences_is_refused() -> None:
    tables = DeviceTables(2, 8, CPU)
    with pytest.raises(ValueError, match="more than 2"):
        tables.rows_of([_running(4), _running(4), _running(4)])


@pytest.mark.parametrize("most", [1, 7, 20, 512, 700, 2048, 8192, 9000])
def test_every_number_of_rows_has_a_graph_with_little_padding(most: int) -> None:
    decodes, mixed = decode_rows(min(most, 300)), mixed_rows(most)
    assert decodes[-1] == min(most, 256) and mixed[-1] == most
    assert decodes == sorted(set(decodes)) and mixed == sorted(set(mixed)) and len(mixed) <= 48
    for rows in range(1024, most):
        assert min(n for n in mixed if n >= rows) <= 1.125 * rows + 1


class _NoGraphs:
    """Records nothing."""

    def record(self, compute: object) -> _NoGraphs:
        return self

    def replay(self) -> None:
        """Do nothing."""


def test_every_step_finds_the_smallest_graph_that_holds_it() -> None:
    graphs = StepGraphs(700, 300)
    assert graphs.find(graphs.shape_of(3, mixes=False, adapted=True)) is None  # nothing is recorded yet
    prepared: list[Shape] = []
    graphs.record(_NoGraphs(), lambda shape: partial(prepared.append, shape))
    assert len(graphs) == len(graphs.shapes())
    for mixes, adapted in itertools.product((False, True), repeat=2):
        for rows in range(1, 701 if mixes else 301):
            shape = graphs.shape_of(rows, mixes=mixes, adapted=adapted)
            assert graphs.find(shape) is not None and shape.adapted == adapted
            of = mixed_rows(700) if mixes or rows > 256 else decode_rows(300)
            assert shape.mixes == (mixes or rows > 256)
            assert shape.rows == min(n for n in of if n >= rows)
