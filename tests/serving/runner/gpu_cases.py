"""The GPU runner against the plain torch one. A program: on CUDA with captured graphs, or under the interpreter with
recorded ones."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from lora_kernels import AdapterPool, BatchMetadata
from lora_kernels.extras import Extras
from serving.core import SamplingParams
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.models.llama_gpu import GpuLlama
from serving.models.loader import load_weights
from serving.runner import step_graphs
from serving.runner.gpu import GpuRunner
from serving.runner.graphs import CudaGraphs
from serving.runner.head import GpuStep
from serving.runner.step_graphs import Shape
from serving.steps import Chunk, StepPlan
from tests.serving.runner.driver import GREEDY, Adapters, Driver, make_torch_driver, random_adapter
from tests.serving.runner.family_cases import (
    every_family_gives_the_reference_s_tokens,
    extras_give_the_reference_s_tokens,
)
from tests.serving.runner.recorded_graphs import RecordedGraphs, seeing
from tests.serving.tiny import write_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
BLOCKS, BLOCK = 60, 16
RANKS = (4, 16, 20)  # the last takes two pages
# The interpreter takes as long as a step has rows: small graphs, of 20 and 40 rows beside 1, 2 and 4 single tokens.
step_graphs.MIXED_STEPS = ((0, 20),)


class Launching(GpuRunner):
    """Launches without waiting, and by graphs alone once they are recorded."""

    recorded = False

    def launch(self, plan: StepPlan) -> GpuStep:
        with never_waiting():
            return super().launch(plan)

    def _forward(self, shape: Shape, units: int, adapters: BatchMetadata | None) -> None:
        assert not self.recorded, f"a step of {shape} replays no graph"
        super()._forward(shape, units, adapters)


@contextmanager
def never_waiting() -> Iterator[None]:
    """Raises where the host waits for the device."""
    if INTERPRETED:
        with seeing(lambda launch: None):
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@cache
def _runner(folder: Path) -> Launching:
    """Its graphs take longer than the cases: recorded once."""
    model = ModelConfig.from_dir(folder)
    adapters = Adapters(AdapterPool(pool_spec(model), 12, 4, torch.float32, DEVICE, backend="triton"))
    llama = GpuLlama(model, load_weights(folder, model, torch.float32, DEVICE), 400, 16, interpreted=INTERPRETED)
    kv = PagedKV(model, BLOCKS, BLOCK, torch.float32, DEVICE)
    graphs = RecordedGraphs() if INTERPRETED else CudaGraphs()
    runner = Launching(llama, kv, adapters, max_rows=40, max_samples=4, max_blocks=25, graphs=graphs)
    runner.recorded = True
    # Loaded after the graphs were recorded, as in a replica.
    for slot, rank in enumerate(RANKS):
        adapters.pool.load(slot, random_adapter(model, rank, slot))
    return runner


def _drivers(folder: Path) -> tuple[Driver, Driver]:
    runner = _runner(folder)
    # Unwritten blocks must not matter; block 0 takes the KV of padding rows.
    runner.kv.data[:, :, 1:] = float("nan")
    adapters = Adapters(runner.adapters.pool)
    ours = Driver(runner, adapters, runner.model.config, list(range(1, BLOCKS)))
    truth = make_torch_driver(folder)
    for slot, rank in enumerate(RANKS):
        truth.adapters.pool.load(slot, random_adapter(runner.model.config, rank, slot))
    return ours, truth


def prompts_chunks_and_tokens_in_one_step_give_the_reference_s_tokens(folder: Path) -> None:
    ours, truth = _drivers(folder)
    answers = []
    for driver in (ours, truth):
        a, b = driver.start(range(5, 25), 0), driver.start(range(100, 119))
        c, d = driver.start([7, 8, 9], 2), driver.start([40] * 17, 1)
        driver.step((a, 20), (b, 10))
        driver.step((a, 1), (b, 9), (c, 3))
        driver.step((a, 1), (b, 1), (c, 1), (d, 17))
        for _ in range(2):
            driver.step((a, 1), (b, 1), (c, 1), (d, 1))
        answers.append([s.tokens for s in (a, b, c, d)])
    assert answers[0] == answers[1], answers


def a_graph_serves_any_step_of_single_tokens_and_any_adapters(folder: Path) -> None:
    ours, truth = _drivers(folder)
    answers = []
    for driver in (ours, truth):
        slots = (None, 0, 1, 2)
        all_four = [driver.start(range(10 + 40 * n, 25 + 40 * n + n), slot) for n, slot in enumerate(slots)]
        for two in (all_four[:2], all_four[2:]):
            driver.step(*((sequence, len(sequence.tokens)) for sequence in two))
        # Blocks end at 16 tokens: every sequence enters one. Three rows are padded to four; the bare base has graphs of
        # its own, and is a neighbour in those with adapters.
        for batch in ([0], [3], [1, 3], [3, 2, 1], [0, 1, 2, 3], [2, 0], [3, 0, 1], [1], [0, 1, 2, 3], [3, 2]):
            driver.step(*((all_four[n], 1) for n in batch))
        answers.append([sequence.tokens for sequence in all_four])
    assert answers[0] == answers[1], answers


def chunks_and_tokens_may_stand_in_any_order_and_fill_a_graph(folder: Path) -> None:
    ours, truth = _drivers(folder)
    answers = []
    for driver in (ours, truth):
        a, b, c = driver.start(range(5, 26), 1), driver.start(range(90, 129)), driver.start(range(40, 46), 0)
        driver.step((a, 20))  # the smaller graph of chunks to its last row
        driver.step((c, 5), (a, 1))  # a chunk before a single token
        given = driver.step((b, 38), (a, 1), (c, 1))  # the larger graph to its last row; the chunk samples nothing
        assert len(given) == 2
        given = driver.step((a, 1), (b, 1), (c, 1))
        answers.append(([s.tokens for s in (a, b, c)], [answer.token_id for answer in given]))
    assert answers[0] == answers[1], answers


def a_preempted_sequence_reads_its_new_blocks_and_others_keep_theirs(folder: Path) -> None:
    ours, truth = _drivers(folder)
    expected = []
    for driver in (ours, truth):
        a, b = driver.start(range(5, 22), 1), driver.start(range(60, 78))
        driver.step((a, 17), (b, 18))
        driver.step((a, 1), (b, 1))
        if driver is ours:  # a gives its blocks back, another sequence takes them, a is computed again elsewhere
            given = a.blocks
            a.blocks, a.computed = [], 0
            c = driver.start(range(120, 137), 2)
            c.blocks = given
            driver.step((c, 17), (b, 1))
            driver.step((a, 19), (c, 1), (b, 1))
        else:
            driver.step((b, 1))
            driver.step((a, 1), (b, 1))
        driver.step((b, 1), (a, 1))
        expected.append((a.tokens, b.tokens))
    assert expected[0] == expected[1], expected


def a_graph_reads_the_adapter_that_is_in_its_slot_now(folder: Path) -> None:
    ours, truth = _drivers(folder)
    for driver in (ours, truth):
        driver.adapters.pool.evict(1)
        driver.adapters.pool.load(1, random_adapter(ModelConfig.from_dir(folder), 20, 77))
    found = []
    for driver in (ours, truth):
        one, other = driver.start(range(30, 41), 1), driver.start(range(50, 57), 0)
        driver.step((one, 11), (other, 7))
        for _ in range(4):
            driver.step((one, 1), (other, 1))
        found.append((one.tokens, other.tokens))
    ours.adapters.pool.evict(1)
    ours.adapters.pool.load(1, random_adapter(ModelConfig.from_dir(folder), RANKS[1], 1))
    assert found[0] == found[1]


def a_step_may_start_before_the_tokens_of_the_one_before_are_known(folder: Path) -> None:
    ours, truth = _drivers(folder)
    drawn = SamplingParams(temperature=1.5, top_p=0.9, presence_penalty=1.0, ignore_eos=True)
    kinds = ((None, GREEDY), (1, GREEDY), (2, drawn))
    expected = [truth.generate(truth.start(range(9, 18), slot, sampling=sampling), 5) for slot, sampling in kinds]
    runner = ours.runner
    assert isinstance(runner, Launching)
    sequences = [ours.start(range(9, 18), slot, sampling=sampling) for slot, sampling in kinds]
    for sequence in sequences:
        sequence.blocks = [ours.free.pop()]
    pending = runner.launch(StepPlan(chunks=[Chunk(sequence, 0, 9) for sequence in sequences]))
    for step in range(4):
        # The order changes: a row finds its token by its sequence, not by its place.
        rows = [Chunk(sequence, 9 + step, 1) for sequence in (sequences[::-1] if step % 2 else sequences)]
        with never_waiting():
            following = runner.launch(StepPlan(chunks=rows))
        _append(pending)
        pending = following
    _append(pending)
    assert [sequence.tokens[9:] for sequence in sequences] == expected


def _append(step: GpuStep) -> None:
    for chunk, answer in zip(step.plan.chunks, step.result(), strict=True):
        chunk.sequence.tokens.append(answer.token_id)  # type: ignore[arg-type]


def sampled_rows_and_embeddings_share_a_step_with_plain_ones(folder: Path) -> None:
    ours, truth = _drivers(folder)
    found = []
    for driver in (ours, truth):
        drawn = driver.start(range(20, 30), sampling=SamplingParams(temperature=0.8, logprobs=2, ignore_eos=True))
        plain, vector = driver.start(range(60, 66), 2), driver.start(range(30, 38), 0, embed=True)
        found.append(driver.step((drawn, 10), (plain, 6), (vector, 8)))
    for one, other in zip(*found, strict=True):
        assert one.token_id == other.token_id
    left, right = (torch.frombuffer(bytearray(answers[2].embedding), dtype=torch.float32) for answers in found)
    torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
    assert found[0][0].logprob is not None and abs(found[0][0].logprob.logprob - found[1][0].logprob.logprob) < 1e-3


def prompts_are_scored_beside_rows_that_sample_and_embed(folder: Path) -> None:
    ours, truth = _drivers(folder)
    found = []
    for driver in (ours, truth):
        scored = SamplingParams(temperature=0, prompt_logprobs=2)
        one, other = driver.start(range(20, 40), sampling=scored), driver.start(range(60, 76), 2, sampling=scored)
        plain, vector = driver.start(range(90, 99), 1), driver.start(range(30, 38), 0, embed=True)
        driver.step((one, 12), (plain, 9), (vector, 8))
        driver.step((plain, 1), (one, 1), (other, 1))  # single tokens: a graph
        driver.step((plain, 1), (one, 7), (other, 15))
        found.append((one, other, plain))
    for left, right in zip(*found, strict=True):
        assert left.tokens == right.tokens
        assert [entry.token_id for entry in left.scored] == [entry.token_id for entry in right.scored]
        assert all(abs(a.logprob - b.logprob) < 1e-3 for a, b in zip(left.scored, right.scored, strict=True))
    assert [len(sequence.scored) for sequence in found[0]] == [19, 15, 0]


def a_step_with_extras_replays_no_graph_and_leaves_other_rows_as_they_were(folder: Path) -> None:
    ours, truth = _drivers(folder)
    width = ours.model.hidden_size
    answers = []
    for driver in (ours, truth):
        pool = driver.adapters.pool
        reservation = pool.reserve(1, 2 * width * 4)
        reservation.write(random_adapter(ours.model, 4, 9))
        scale, bias = torch.linspace(0.5, 1.5, width), torch.linspace(-0.2, 0.2, width)
        memory = reservation.extra_memory
        assert memory is not None
        memory.copy_(torch.cat([scale, bias]))
        at = (1, "o")
        reservation.extras = Extras(memory, scales={at: memory[:width]}, biases={at: memory[width:]})
        pool.publish(3, reservation)
        if isinstance(driver.runner, Launching):
            driver.runner.recorded = False
        a, b = driver.start(range(5, 17), 3), driver.start(range(5, 17), 0)
        driver.step((a, 12), (b, 12))
        driver.step((a, 1), (b, 1))
        if isinstance(driver.runner, Launching):
            driver.runner.recorded = True
        driver.step((b, 1))
        pool.evict(3)
        answers.append([a.tokens, b.tokens])
    assert answers[0] == answers[1] and answers[0][0] != answers[0][1][:-1], answers


CASES = (
    prompts_chunks_and_tokens_in_one_step_give_the_reference_s_tokens,
    a_graph_serves_any_step_of_single_tokens_and_any_adapters,
    chunks_and_tokens_may_stand_in_any_order_and_fill_a_graph,
    a_preempted_sequence_reads_its_new_blocks_and_others_keep_theirs,
    a_graph_reads_the_adapter_that_is_in_its_slot_now,
    a_step_may_start_before_the_tokens_of_the_one_before_are_known,
    sampled_rows_and_embeddings_share_a_step_with_plain_ones,
    prompts_are_scored_beside_rows_that_sample_and_embed,
    a_step_with_extras_replays_no_graph_and_leaves_other_rows_as_they_were,
    every_family_gives_the_reference_s_tokens,
    extras_give_the_reference_s_tokens,
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        write_model(Path(folder), layers=2)
        for case in CASES:
            case(Path(folder))
            print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
