"""A profile and a workload that no machine measured, fast to simulate."""

from __future__ import annotations

import msgspec

from capacity.profile import Machine, Model, Profile, Quality, Replica
from capacity.steps import KNOTS, PRIOR
from capacity.workload import Promise, Sample, Workload


def profile(**changes: object) -> Profile:
    made = Profile(
        made_at="2026-01-01T00:00:00+00:00",
        commit="c0ffee",
        own_clock=False,
        machine=Machine(cpu="a processor", cores=2, threads=2, gpu=None, torch="2", python="3.11"),
        model=Model(
            name="tiny",
            fingerprint="f" * 64,
            dtype="bfloat16",
            layers=2,
            weight_bytes=10**8,
            block_bytes=10**5,
            max_len=512,
            hidden=64,
            kv_heads=2,
        ),
        replica=replica(),
        coefficients=dict(PRIOR),
        shape=(0.0,) * len(KNOTS),
        residuals=(-0.1, -0.03, 0.0, 0.03, 0.1),
        load_seconds=(0.02, 0.03),
        load_speed=0.5,
        probe_read=2e10,
        probe_gemm=1e11,
        quality=Quality(steps=500, median=0.03, p90=0.08),
    )
    return msgspec.structs.replace(made, **changes)


def replica(**changes: int | float) -> Replica:
    made = Replica(
        max_batched_tokens=128,
        max_num_seqs=16,
        max_queue=512,
        min_prefill_tokens=32,
        block_size=16,
        blocks=400,
        slots=8,
        pages=16,
        page_bytes=10**6,
        workers=2,
        load_pause=0.0,
        depth=0,
    )
    return msgspec.structs.replace(made, **changes)


def workload(**changes: object) -> Workload:
    made = Workload(
        rate=4.0,
        promises={"interactive": Promise(ttft=0.5, tpot=0.1)},
        samples=(Sample(prompt=48, cached=16, output=6, weight=2.0), Sample(prompt=96, output=10)),
        adapters=6,
        alpha=0.9,
    )
    return msgspec.structs.replace(made, **changes)
