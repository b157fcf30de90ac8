"""All products of a model's forward pass, ours and torch's, each beside what the machine could do at most.

    python -m benchmarks.serving_linear [--rows 1 8 32] [--threads 2] [--out FOLDER]

The shapes are SmolLM2-135M's: 30 layers of qkv, o, gate_up and down, and the head. Up to 64 rows the head is in the
sum, as in decoding; above, as in prefill, it is not. Every contender is called once in a round, and the medians of the
rounds are compared. The limit of a contender is the longer of two times: its weights at the read bandwidth, its
multiply-adds at the peak rate of the instruction that its weights allow, both measured in the same rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks import machine
from lora_kernels.native import built_library
from serving.kernels.library import KernelLibrary, load_library
from serving.kernels.linear import DTYPES, PackedLinear, WeightArena, packed_bytes, run_products, scratch_bytes

LAYERS, LAYER_SHAPES, HEAD = 30, ((960, 576), (576, 576), (3072, 576), (576, 1536)), (49152, 576)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_ROWS_WITH_HEAD = 64
SECONDS_PER_POINT = 2.5
MULTIPLY_ROUNDS = 400_000

# The instruction that does the most multiply-adds a second with weights of a type, by instruction set.
INSTRUCTIONS = {
    "avx2": {"float32": "fma_avx2", "bfloat16": "fma_avx2", "int8": "integer_avx2"},
    "avx512": {"float32": "fma_avx512", "bfloat16": "bf16_avx512", "int8": "integer_avx512"},
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender at one number of rows. Times in ms, rates in 10^9 a second; limit_share = limit / time."""

    contender: str
    rows: int
    head: bool
    ms: float
    gb_s: float
    gflop_s: float
    limit_ms: float
    limit_share: float


class Limits:
    """Read bandwidth and multiply-adds a second, sampled anew in every round."""

    def __init__(self, threads: int) -> None:
        with built_library(Path(__file__).parent / "cpu_limits", "limits") as path:
            self.handle = ctypes.CDLL(str(path))
        self.handle.limits_multiply.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int)
        self.handle.limits_multiply.restype = ctypes.c_int64
        self.handle.limits_read.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
        self._threads = threads
        self._arena = WeightArena(256 << 20)
        self._words = (256 << 20) // 8
        self._memory = self._arena.take(self._words * 8)
        ctypes.memset(self._memory, 1, self._words * 8)

    def read_seconds(self) -> float:
        """Seconds a byte."""
        return _seconds(lambda: self.handle.limits_read(self._memory, self._words, self._threads)) / (self._words * 8)

    def multiply_seconds(self, instruction: str) -> float:
        """Seconds a multiply-add, all threads together."""
        start = time.perf_counter()
        each = self.handle.limits_multiply(instruction.encode(), MULTIPLY_ROUNDS, self._threads)
        return (time.perf_counter() - start) / (each * self._threads)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Ours:
    """Every packed weight of one type, run by one team as the forward pass does."""

    def __init__(self, weights: list[torch.Tensor], dtype: str, library: KernelLibrary) -> None:
        arena = WeightArena(sum(packed_bytes(weight.shape[0], weight.shape[1], dtype) for weight in weights))
        self._linears = [PackedLinear(weight, dtype, library, arena) for weight in weights]
        self._library = library

    def bytes(self, count: int) -> int:
        return sum(each.nbytes for each in self._linears[:count])

    def call(self, rows: int, count: int, threads: int) -> Callable[[], object]:
        """A call of the first `count` products."""
        k, n = max(each.k for each in self._linears), max(each.n for each in self._linears[:count])
        x, y = torch.randn(rows * k), torch.empty(rows * n)
        scratch = torch.empty(scratch_bytes(self._library, k, rows, threads) + 64, dtype=torch.uint8)
        aligned = -(-scratch.data_ptr() // 64) * 64

        def run() -> tuple[torch.Tensor, ...]:
            run_products(self._library, self._linears[:count], x.data_ptr(), k, rows, y.data_ptr(), n, aligned, threads)
            return x, y, scratch

        return run


def torch_calls(weights: list[torch.Tensor], rows: int, dtype: torch.dtype) -> Callable[[], object]:
    """torch's own product (MKL for float32)."""
    inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]).to(dtype) for weight in weights}

    def run() -> None:
        for weight in weights:
            functional.linear(inputs[weight.shape[1]], weight)

    return run


def onednn_calls(weights: list[torch.Tensor], rows: int, dtype: torch.dtype) -> Callable[[], object]:
    """oneDNN's product, its weights reordered for this number of rows."""
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
    inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]).to(dtype) for weight in weights}

    def run() -> None:
        for weight, reordered in zip(weights, packed, strict=True):
            torch.ops.mkldnn._linear_pointwise(inputs[weight.shape[1]], reordered, None, "none", [], "")

    return run


def measure(rows: int, weights: list[torch.Tensor], ours: dict[str, Ours], limits: Limits, isa: str) -> list[Figure]:
    """Every contender at one number of rows."""
    threads = torch.get_num_threads()
    count = len(weights) if rows <= MOST_ROWS_WITH_HEAD else len(weights) - 1
    torch_dtypes = {"float32": torch.float32, **({"bfloat16": torch.bfloat16} if isa == "avx512" else {})}
    calls = {("ours", dtype): each.call(rows, count, threads) for dtype, each in ours.items()}
    for name, kind in torch_dtypes.items():
        cast = [weight.to(kind) for weight in weights[:count]]
        calls["torch", name] = torch_calls(cast, rows, kind)
        calls["oneDNN", name] = onednn_calls(cast, rows, kind)
    instructions = sorted(set(INSTRUCTIONS[isa].values()))
    samples: dict[object, list[float]] = {key: [] for key in (*calls, "read", *instructions)}
    for call in calls.values():
        call()
    stop = time.perf_counter() + SECONDS_PER_POINT
    while time.perf_counter() < stop or len(samples["read"]) < 3:
        samples["read"].append(limits.read_seconds())
        for instruction in instructions:
            samples[instruction].append(limits.multiply_seconds(instruction))
        for key, call in calls.items():
            samples[key].append(_seconds(call))
    median = {key: statistics.median(values) for key, values in samples.items()}
    products = sum(weight.numel() for weight in weights[:count])
    figures = []
    for who, dtype in calls:
        size = ours[dtype].bytes(count)
        seconds = median[who, dtype]
        limit = max(size * median["read"], products * rows * median[INSTRUCTIONS[isa][dtype]])
        figures.append(
            Figure(
                contender=f"{who} {dtype}",
                rows=rows,
                head=count == len(weights),
                ms=seconds * 1e3,
                gb_s=size / seconds / 1e9,
                gflop_s=2 * products * rows / seconds / 1e9,
                limit_ms=limit * 1e3,
                limit_share=limit / seconds,
            )
        )
    return figures


def print_table(figures: list[Figure]) -> None:
    names = list(dict.fromkeys(figure.contender for figure in figures))
    print("ms for all products (share of the limit)")
    print(f"{'rows':>5} " + " ".join(f"{name:>18}" for name in names) + f"{'GB/s, GFLOP/s of ours bfloat16':>34}")
    for rows in dict.fromkeys(figure.rows for figure in figures):
        line = {figure.contender: figure for figure in figures if figure.rows == rows}
        cells = " ".join(f"{line[name].ms:>11.2f} ({line[name].limit_share:>4.0%})" for name in names)
        bfloat16 = line["ours bfloat16"]
        print(f"{rows:>5} {cells} {bfloat16.gb_s:>20.1f} {bfloat16.gflop_s:>12.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=machine.RESULTS / machine.cpu_kind(), help="folder of the results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    library = load_library()
    if library is None or library.instruction_set not in INSTRUCTIONS:
        raise SystemExit("no compiled kernels for this processor: nothing to compare")
    description = machine.describe()
    limits = Limits(arguments.threads)
    shapes = [*LAYER_SHAPES * LAYERS, HEAD]
    weights = [torch.randn(n, k) / k**0.5 for n, k in shapes]
    ours = {dtype: Ours(weights, dtype, library) for dtype in DTYPES}
    figures: list[Figure] = []
    for rows in arguments.rows:
        figures += measure(rows, weights, ours, limits, library.instruction_set)
    print_table(figures)
    result = {"machine": description, "kernels": library.instruction_set, "figures": [asdict(each) for each in figures]}
    machine.write_suite(arguments.out, "serving_linear", result)


if __name__ == "__main__":
    main()
