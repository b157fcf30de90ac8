"""Stage: the LoRA kernels beside vLLM's and SGLang's, in the same graphs, and what adapters cost a prefill.

Every contender runs in a CUDA graph over up to 32 layers of weights, the second-level cache flushed before each replay;
a figure is the median of the replays over the number of layers, in microseconds. Outputs are checked against float32
first. The byte limit is the bytes that must move over the bandwidth of a copy, measured in the same run.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks.gpu import records
from benchmarks.gpu.contenders import CONTENDERS, Call
from benchmarks.gpu.grid import SITES, GpuInputs, GpuPoint, make_inputs, points
from benchmarks.gpu.stages import SECONDS, WRONG
from benchmarks.gpu.timing import Cuda, graph_seconds
from benchmarks.gpu.wheels import PeerMissingError
from lora_kernels import AdapterPool, BatchMetadata, LoraPair, PoolSpec, lora_apply, lora_write

# Relative Frobenius error of y in bfloat16: roundings of x Aᵀ and of y itself; a missing adapter is above 0.3.
MOST_ERROR = 0.02
# The promise: geometric means over the grid, and the share of the byte limit with at least that many adapters.
PROMISED = {"vllm": 2.0, "csgmv": 1.5, "triton_v2": 1.15}
LIMIT_SHARE, LIMIT_DISTINCT = 0.75, 32
# Tokens, prompts and the promise of the prefill, as a share of the time of the four base GEMMs of a layer.
TOKENS, PROMPTS, RANK = 8192, 8, 16
PREFILL_SHARE = 0.08
SEED = 0
# Remarks that must stand beside a peer's figures.
NOTES = {"csgmv": "csgmv has tuned tables for the H200 alone; on other cards it takes its defaults"}


@dataclass(frozen=True)
class Measured:
    """One point: microseconds a layer of each contender, of the byte limit, and why others are missing."""

    point: GpuPoint
    distinct: int
    layers: int
    limit_us: float
    us: dict[str, float]
    skipped: dict[str, str]


def measure(point: GpuPoint, seed: int, bandwidth: float) -> Measured:
    """Time every contender at one point. Raises RuntimeError when ours is wrong; a peer that fails is named."""
    inputs = make_inputs(point, seed, torch.device("cuda"))
    us: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for name, make in CONTENDERS.items():
        try:
            call = make(inputs)
            check(name, call, inputs)
            us[name] = 1e6 * graph_seconds(lambda layer, call=call: call(layer, inputs.y), inputs.layers)  # type: ignore[misc]
        except PeerMissingError as error:
            skipped[name] = str(error)
        except Exception as error:
            if name == "ours":
                raise
            skipped[name] = f"{type(error).__name__}: {str(error)[:200]}"
        torch.cuda.empty_cache()
    limit = 1e6 * point.limit_bytes(inputs.ranks) / bandwidth
    return Measured(point, len(inputs.ranks), inputs.layers, limit, us, skipped)


def check(name: str, call: Call, inputs: GpuInputs) -> None:
    """Raise RuntimeError unless the last layer's result is near float32's."""
    y, layer = inputs.y.clone(), inputs.layers - 1
    call(layer, y)
    expected = inputs.expected(layer)
    error = float((y.float() - expected).norm() / expected.norm())
    if not error < MOST_ERROR:
        raise RuntimeError(f"{name} is wrong: relative error {error:.3f}")


def missed_bars(results: Sequence[Measured], prefill: Prefill | None) -> list[str]:
    """Return a line for each promise that was measured and does not hold, over the points that have both sides."""
    wanted = [
        (f"× {name}", _mean(one.us[name] / one.us["ours"] for one in results if name in one.us), bar)
        for name, bar in PROMISED.items()
    ]
    many = _mean(one.limit_us / one.us["ours"] for one in results if one.distinct >= LIMIT_DISTINCT)
    wanted.append((f"of the byte limit, {LIMIT_DISTINCT} adapters or more", many, LIMIT_SHARE))
    missed = [f"LoRA kernels: {value:.2f} {name}, {bar} wanted" for name, value, bar in wanted if value and value < bar]
    if prefill is not None and prefill.share > PREFILL_SHARE:
        missed.append(f"LoRA kernels: {prefill.share:.2f} of a prefill's base GEMMs, {PREFILL_SHARE} wanted at most")
    return missed


def _mean(ratios: Iterable[float]) -> float | None:
    values = list(ratios)
    return statistics.geometric_mean(values) if values else None


@dataclass(frozen=True)
class Prefill:
    """Milliseconds for one layer's four sites.

    base: y = x Wᵀ alone; added: and y += ΔW x afterwards; first: y = ΔW x, then y += x Wᵀ in the GEMM (beta = 1)
    """

    base_ms: float
    added_ms: float
    first_ms: float

    @property
    def share(self) -> float:
        """Return the share of the base's time that adapters add, the better way."""
        return min(self.added_ms, self.first_ms) / self.base_ms - 1


def measure_prefill(seed: int, device: torch.device | str = "cuda") -> Prefill:
    """Rank 16 on every site, one adapter a prompt."""
    spec = PoolSpec(tuple(SITES.values()), 1, max_rank=RANK)
    pool = AdapterPool(spec, PROMPTS, PROMPTS, torch.bfloat16, device, backend="triton")
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int, over: float = 1) -> torch.Tensor:
        return (torch.randn(*size, generator=generator, device=device) / over**0.5).bfloat16()

    for slot in range(PROMPTS):
        pool.load(
            slot,
            {
                (0, site.name, index): LoraPair(
                    normal(RANK, site.in_features, over=site.in_features), normal(width, RANK, over=RANK), 1.0
                )
                for site in SITES.values()
                for index, width in enumerate(site.slices)
            },
        )
    meta = BatchMetadata.build(list(range(PROMPTS)), [TOKENS // PROMPTS] * PROMPTS, pool)
    x = {site.name: normal(TOKENS, site.in_features) for site in SITES.values()}
    w = {site.name: normal(site.in_features, site.out_features, over=site.in_features) for site in SITES.values()}
    y = {
        site.name: torch.empty(TOKENS, site.out_features, device=device, dtype=torch.bfloat16)
        for site in SITES.values()
    }

    def base() -> None:
        for name in SITES:
            torch.mm(x[name], w[name], out=y[name])

    def added() -> None:
        for name in SITES:
            torch.mm(x[name], w[name], out=y[name])
            lora_apply(y[name], x[name], name, 0, meta)

    def first() -> None:
        for name in SITES:
            lora_write(y[name], x[name], name, 0, meta)
            torch.addmm(y[name], x[name], w[name], out=y[name])

    return Prefill(*(1e3 * graph_seconds(lambda _, call=call: call(), 1) for call in (base, added, first)))  # type: ignore[misc]


def measure_all(
    wanted: Iterable[GpuPoint], one: Callable[[GpuPoint], Measured], deadline: float
) -> tuple[list[Measured], int]:
    """Write a record per point until the deadline. Returns the results, and at how many points ours was wrong."""
    results: list[Measured] = []
    wrong = 0
    for point in wanted:
        if time.monotonic() > deadline:
            break
        try:
            results.append(one(point))
        except RuntimeError as error:
            wrong += 1
            records.emit({"record": "wrong", "point": asdict(point), "problem": str(error)[:500]})
            continue
        records.emit({"record": "peers", **asdict(results[-1])})
    return results, wrong


def main() -> int:
    """Return `WRONG` when a result of ours was wrong somewhere."""
    deadline = time.monotonic() + 0.8 * float(os.environ.get(SECONDS, "600"))
    records.emit({"record": "notes", **NOTES})
    bandwidth = Cuda().copy_bytes_per_second()
    results, wrong = measure_all(points(), lambda point: measure(point, SEED, bandwidth), deadline)
    prefill = None
    if time.monotonic() < deadline:
        prefill = measure_prefill(SEED)
        records.emit({"record": "prefill", **asdict(prefill)})
    for missed in missed_bars(results, prefill):
        records.emit({"record": "missed bar", "bar": missed})
    return WRONG * (wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
