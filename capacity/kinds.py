"""One base on one accelerator: step times, memory, operating point. Where it was not measured, it is carried over.

A calibrated profile is used as it is. For an accelerator without one, the nearest profile's step times are carried
over by read bandwidth and products (`steps.transfer`), with the shares of the data sheet that machines were seen to
reach, and its memory is divided anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from capacity.catalogue import Accelerator
from capacity.errors import PlanRefused
from capacity.memory import Sizes, budget, measured_budget
from capacity.operating import Effort
from capacity.profile import CARRIED_ERROR, Profile
from capacity.results import MemoryBudget, OperatingPoint, Source
from capacity.search import KeptRuns, operating_point
from capacity.simulate import Scene
from capacity.sketch import sketched
from capacity.steps import Probes, transfer
from capacity.terms import Terms
from capacity.workload import Workload

# Of the data sheet, on 1,063 public measurements: the rules of thumb of the design. A plan says "transferred".
READ_SHARE, PRODUCT_SHARE = 0.75, 0.5
UNTOUCHED = 1 + CARRIED_ERROR  # a factor either way, for hardware that nobody has run
MEASURED = 1.1
OVER_HTTP = 1.2  # throughput of held-out cells was up to 17 % off (the design's predictor A)
_ALL_REDUCE_SECONDS = 10e-6
_MOST_CARDS = 8


@dataclass(frozen=True)
class Kind:
    """One base on one accelerator, with `cards` of them in a replica.

    degraded: requests/s of one replica within the degraded promise; factor: how far the rates may be off, either way
    sure: whether enough was simulated for a promise, or a sketch for a choice
    """

    base: str
    accelerator: str
    cards: int
    profile: Profile
    memory: MemoryBudget
    point: OperatingPoint
    degraded: float
    factor: float
    sure: bool
    warnings: tuple[str, ...]

    def rate(self, replicas: int) -> float:
        """Return the requests/s of one replica among `replicas`: of the next lower count that was simulated."""
        counts = [count for count in self.point.mu if count <= replicas]
        best = max(counts, default=min(self.point.mu))
        return self.point.mu[best] / best

    def needed(self, demand: float, spare: int) -> int:
        """Return step 11, n = ⌈D / μ*(n)⌉ + k, where μ* depends on n."""
        if demand <= 0:
            return 0
        count = 1
        for _ in range(20):
            wanted = math.ceil(demand / self.rate(count) - 1e-9)
            if wanted <= count:
                break
            count = wanted
        return count + spare


def kind_of(
    base: str,
    accelerator: Accelerator | None,
    name: str,
    profiles: Mapping[str, Profile],
    workload: Workload,
    terms: Terms,
    effort: Effort,
    sure: bool,
    sketch: Kind | None = None,
) -> Kind:
    """Return a base on an accelerator. profiles: of this base, by the accelerator that each was measured on; sure: as
    `Kind` says it; sketch: of the same, near whose rates the search begins.

    Raises PlanRefused with the step that fails: no profile to carry over, no room, or no rate within the promise.
    """
    measured = profiles.get(name)
    warnings: list[str] = []
    cards = 1
    if measured is not None:
        profile, memory = measured, measured_budget(measured, workload)
        factor = factor_of(measured)
    else:
        if accelerator is None:
            raise PlanRefused(7, f"{name} is in no catalogue, and has no profile: nothing is known of it")
        if not profiles:
            raise PlanRefused(
                8, f"{base} has no profile: run `python -m capacity calibrate` on any machine that serves it"
            )
        from_name, nearest = sorted(profiles.items())[0]
        profile, memory, cards = _carried_over(nearest, accelerator, workload, terms)
        factor = UNTOUCHED
        warnings.append(
            f"{base} on {name} was never run: its step times are those of {from_name}, carried over by two figures of "
            f"the catalogue, and good to a factor of {UNTOUCHED}. Rent one for an hour and calibrate."
        )
    scene, runs = Scene(profile, workload), KeptRuns()
    if sure:
        counts = (1, 2, 4) if measured is not None else (1, 2)
        near = sketch.point.mu[1] if sketch is not None else None
        point = operating_point(scene, effort, replicas=counts, near=near, runs=runs)
    else:
        point = sketched(scene, effort)  # it chooses by the promise alone
    lesser = {
        one: msgspec.structs.replace(promise, ttft=promise.ttft * terms.degraded, tpot=promise.tpot * terms.degraded)
        for one, promise in workload.promises.items()
    }
    degraded = point
    if sure and terms.failures and terms.degraded > 1:
        worse = replace(scene, workload=msgspec.structs.replace(workload, promises=lesser))
        degraded = operating_point(worse, effort, near=point.mu[1], runs=runs)
    source = Source.TRANSFERRED if measured is None else point.source
    if profile.example:
        source = Source.CATALOGUE  # nothing was timed: the simulation rests on figures as they were written
    return Kind(
        base,
        name,
        cards,
        profile,
        memory,
        replace(point, source=source),
        max(degraded.mu[1], point.mu[1]) if 1 in point.mu else degraded.mu[1],
        factor,
        sure,
        tuple(warnings),
    )


def factor_of(profile: Profile) -> float:
    """Return how far the rates of a measured profile may be off, as a factor either way."""
    return max(OVER_HTTP if profile.over_http else MEASURED, 1 + profile.error)


def attempt(job: tuple[Any, ...]) -> Kind | PlanRefused:
    """Return `kind_of` of a job, or its refusal: a process's answer is a value."""
    try:
        return kind_of(*job)
    except PlanRefused as error:
        return error


def _carried_over(
    profile: Profile, accelerator: Accelerator, workload: Workload, terms: Terms
) -> tuple[Profile, MemoryBudget, int]:
    """Return profile, memory and cards on an accelerator: the fewest cards that hold weights, adapters and KV."""
    model, limits = profile.model, profile.replica
    refused: PlanRefused | None = None
    for cards in (1, 2, 4, _MOST_CARDS):
        if cards > 1 and (accelerator.link is None or model.kv_heads % cards):
            break  # KV is divided by heads, and ranks meet twice a layer
        sizes = Sizes(
            total=int(accelerator.memory) * cards,
            share=terms.memory_share,
            weights=model.weight_bytes,
            kv_token=math.ceil(model.block_bytes / limits.block_size),
            page=limits.page_bytes,
            slots=min(terms.slots, max(1, workload.adapters)),
            workspace=int(terms.workspace_gb * 1e9) * cards,
        )
        try:
            memory = budget(sizes, workload, source=Source.CATALOGUE)
        except PlanRefused as error:
            refused = error
            continue
        return _profile_on(profile, accelerator, cards, memory, sizes), memory, cards
    assert refused is not None
    words = str(refused).removeprefix("step 5: ")
    if accelerator.link is None:
        words += f". {accelerator.name} has no NVLink in the catalogue, so a replica has one card"
    else:
        words += f". {model.name} has {model.kv_heads} KV heads, which cards divide"
    raise PlanRefused(5, words)


def _profile_on(profile: Profile, accelerator: Accelerator, cards: int, memory: MemoryBudget, sizes: Sizes) -> Profile:
    if profile.over_http:
        raise PlanRefused(
            8,
            "a profile that was measured over HTTP has no probes, and cannot be carried over: `calibrate --model` has",
        )
    probes = Probes(accelerator.bandwidth * READ_SHARE * cards, accelerator.bf16 * PRODUCT_SHARE * cards)
    coefficients = dict(transfer(profile.steps, profile.probes, probes).coefficients)
    if cards > 1:
        assert accelerator.link is not None
        # Two all-reduces a layer: what each row moves (2 bytes an activation), and what each costs at least.
        moved = 2 * profile.model.layers * profile.model.hidden * 2 * 2 * (cards - 1) / cards
        coefficients["row"] += moved / accelerator.link
        coefficients["step"] += 2 * profile.model.layers * _ALL_REDUCE_SECONDS
    replica = msgspec.structs.replace(
        profile.replica,
        blocks=max(2, memory.kv_tokens // profile.replica.block_size),
        slots=sizes.slots,
        pages=max(sizes.slots, profile.replica.pages),
        max_num_seqs=max(profile.replica.max_num_seqs, min(256, memory.sequences)),
    )
    return msgspec.structs.replace(profile, coefficients=coefficients, replica=replica, transferred=True)
