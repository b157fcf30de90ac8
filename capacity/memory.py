"""Step 5, memory: what weights, adapters, KV and workspace take of one accelerator."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capacity.errors import PlanRefused
from capacity.profile import Profile
from capacity.results import MemoryBudget, Source, Step
from capacity.workload import Workload

PAGE_RANK = 16
_GB = 1e9


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A base model's sizes, for a plan without a replica at hand.

    site_widths: ΣS·K+N over a layer's fused linears: slices × inputs + outputs
    """

    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    parameters: int
    site_widths: int

    def weights(self, bytes_each: float) -> int:
        """Return W = Σ params × bytes."""
        return math.ceil(self.parameters * bytes_each)

    def kv_token(self, bytes_each: float) -> int:
        """Return κ = 2·layers·kv_heads·head_dim·bytes, in bytes per token."""
        return math.ceil(2 * self.layers * self.kv_heads * self.head_dim * bytes_each)

    def page(self, bytes_each: float) -> int:
        """Return the bytes of 16 ranks over all layers: 16·Σ(S·K+N)·layers·bytes."""
        return math.ceil(PAGE_RANK * self.site_widths * self.layers * bytes_each)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes by which one replica's memory is divided, in bytes.

    weights, kv_token, page: of the base, of a token's KV, of 16 ranks of an adapter
    slots: adapters resident at once; workspace: of a step
    total: of the accelerator; share: that a replica takes
    """

    total: int
    share: float
    weights: int
    kv_token: int
    page: int
    slots: int
    workspace: int


def budget(sizes: Sizes, workload: Workload, *, tensor_parallel: int = 1, source: Source) -> MemoryBudget:
    """Return the memory by kind: B_max = (M·u − W − slots·page·⌈r/16⌉ − R) / (κ·E[P+O/2]).

    Raises PlanRefused where weights and adapters leave no room for the workload's longest call.
    """
    if min(sizes.total, sizes.weights, sizes.kv_token, sizes.page) <= 0 or not 0 < sizes.share <= 1:
        raise PlanRefused(5, "memory, weights, KV and pages must be above 0, the share above 0 and at most 1")
    usable = math.floor(sizes.total * sizes.share)
    pages = mean_pages(workload)
    adapters = math.ceil(min(sizes.slots, workload.adapters) * pages * sizes.page / tensor_parallel)
    weights = math.ceil(sizes.weights / tensor_parallel)
    kv_token = sizes.kv_token / tensor_parallel
    kv = usable - weights - adapters - sizes.workspace
    longest = workload.longest * kv_token
    if kv < longest:
        short = (longest - kv) / _GB
        raise PlanRefused(
            5,
            f"weights {weights / _GB:.1f} GB, adapters {adapters / _GB:.1f} GB and workspace "
            f"{sizes.workspace / _GB:.1f} GB leave {max(0, kv) / _GB:.2f} of {usable / _GB:.1f} GB for KV; the longest "
            f"call needs {longest / _GB:.2f} GB: {short:.2f} GB are missing. Fewer adapter slots, more accelerators "
            "for one replica, a larger one, or shorter calls",
        )
    mean = workload.mean(lambda sample: sample.prompt + sample.output / 2)
    return MemoryBudget(
        total=sizes.total,
        usable=usable,
        weights=weights,
        adapters=adapters,
        kv=math.floor(kv),
        workspace=sizes.workspace,
        kv_tokens=math.floor(kv / kv_token),
        sequences=math.floor(kv / (kv_token * mean)),
        source=source,
    )


def mean_pages(workload: Workload) -> float:
    """Return the mean pages of an adapter: E⌈r/16⌉ over the rank mix."""
    total = sum(workload.ranks.values())
    return sum(share * math.ceil(int(rank) / PAGE_RANK) for rank, share in workload.ranks.items()) / total


def measured_budget(profile: Profile, workload: Workload) -> MemoryBudget:
    """Return the memory of the replica that was calibrated, as it is divided there.

    Raises PlanRefused where its KV cache does not hold the workload's longest call.
    """
    sizes, model = profile.replica, profile.model
    tokens = sizes.blocks * sizes.block_size
    if workload.longest > min(tokens, model.max_len):
        raise PlanRefused(
            5,
            f"the longest call has {workload.longest} tokens; this replica's KV cache holds {tokens}, its context "
            f"{model.max_len}: {workload.longest - min(tokens, model.max_len)} tokens are missing",
        )
    mean = workload.mean(lambda sample: sample.prompt + sample.output / 2)
    adapters, kv = sizes.pages * sizes.page_bytes, sizes.blocks * model.block_bytes
    total = model.weight_bytes + adapters + kv
    return MemoryBudget(
        total, total, model.weight_bytes, adapters, kv, 0, tokens, math.floor(tokens / mean), Source.MEASURED
    )


def step(found: MemoryBudget, workload: Workload) -> Step:
    """Return step 5 as it is printed."""
    inputs = {kind: f"{size / _GB:.2f} GB" for kind, size in found.kinds().items()}
    inputs["longest call"] = f"{workload.longest:,} tokens"
    mean = workload.mean(lambda sample: sample.prompt + sample.output / 2)
    return Step(
        5,
        "Memory",
        inputs,
        "B_max = (M·u − W − slots·page·⌈r/16⌉ − R) / (κ·E[P + O/2])",
        f"{found.kv_tokens:,} tokens of KV: {found.sequences:,} sequences of the mean length at once",
        float(found.sequences),
        "sequences",
        found.source,
        worked=f"({_gb(found.usable)} − {_gb(found.weights)} − {_gb(found.adapters)} − {_gb(found.workspace)}) GB = "
        f"{_gb(found.kv)} GB; {_gb(found.kv)} GB / {found.kv / max(1, found.kv_tokens):,.0f} B per token = "
        f"{found.kv_tokens:,} tokens; {found.kv_tokens:,} / {mean:.1f} tokens = {found.sequences:,} sequences",
    )


def _gb(size: int) -> str:
    return f"{size / _GB:.3f}"
