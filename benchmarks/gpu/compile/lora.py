"""The launches of lora_kernels: every site, page type, tile and number of planes that a replica can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.compile.variant import Use, meta
from benchmarks.gpu.grid import SITES
from lora_kernels import PoolSpec, SiteSpec
from lora_kernels.batch import Batch, Grouped, tile_rows_for
from lora_kernels.ops import triton_path, tuning
from lora_kernels.ops.launch import SitePlan
from lora_kernels.storage.site import SiteStorage
from lora_kernels.storage.store import PageStore
from lora_kernels.training.embed import launch_embed
from serving.models.llama_gpu import FIRST_WRITE_ROWS

PROCESSORS = 132
# SmolLM2-135M: a K that no block of 128 divides, and slices that no block of columns divides.
NARROW = {
    "qkv": SiteSpec("qkv", 576, (576, 192, 192)),
    "o": SiteSpec("o", 576, (576,)),
    "gate_up": SiteSpec("gate_up", 576, (1536, 1536)),
    "down": SiteSpec("down", 1536, (576,)),
}
MODELS = {"Llama-3-8B": SITES, "SmolLM2-135M": NARROW}
# Pages, and activations.
DTYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "fp32": (torch.float32, torch.float32),
    "fp8e4nv": (torch.float8_e4m3fn, torch.bfloat16),
    "fp8e4nv, fp16": (torch.float8_e4m3fn, torch.float16),
}
# Both sides of every bound of planes (64 and 4096 rows) and tiles (512 rows).
ROWS = (32, 512, 2048, 8192)
# The rest differs from those as its neighbours do.
FEWER_ROWS = (32, 2048)
SLOTS = 32


def launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield every step of a replica, as far as kernels differ, at every site."""
    for model, sites in MODELS.items():
        for site in sites.values():
            for name, (pages, activations) in DTYPES.items():
                narrow = sites is NARROW
                if narrow and name != "bf16":
                    continue
                storage = storage_of(site, pages)
                for rows in FEWER_ROWS if narrow or name not in ("bf16", "fp8e4nv") else ROWS:
                    small = rows in (32, 2048) and (model, site.name, name) in SMALL
                    use = Use(f"{model} {site.name}", name, rows, small)
                    yield use, partial(launch, storage, rows, activations)


def launch(storage: SiteStorage, rows: int, activations: torch.dtype) -> None:
    """Launch what a site is launched with in a step of as many rows."""
    batch = batch_of(rows)
    x = meta(activations, rows, storage.spec.in_features)
    y = meta(activations, rows, storage.offsets[-1])
    plan = storage.cache["plan"]
    assert isinstance(plan, SitePlan)
    with tuning.using(plan.config):
        triton_path.apply(y, x, storage, 0, batch)
        if rows >= FIRST_WRITE_ROWS:
            triton_path.write(y, x, storage, 0, batch)
        if len(storage.spec.slices) == 1:
            launch_embed(meta(torch.int64, rows), storage, 0, batch)


# Three slices, one and two: the tensor-core tile of shrink has 64, 16 and 32 ranks.
SMALL = {("Llama-3-8B", "qkv", "bf16"), ("Llama-3-8B", "o", "bf16"), ("Llama-3-8B", "gate_up", "fp8e4nv")}


def storage_of(site: SiteSpec, pages: torch.dtype, device_name: str = "NVIDIA H200") -> SiteStorage:
    """Return a site without memory, with the plan it would have on that GPU."""
    store = PageStore(PoolSpec((site,), 1), 1, SLOTS, pages, torch.device("meta"), in_blocks=False)
    storage = store.site(site.name)
    config = tuning.configured(site.in_features, site.slices, device_name)
    storage.cache["plan"] = tuning.new_plan(storage, config, PROCESSORS, pdl=config.pdl)
    return storage


def batch_of(rows: int) -> Batch:
    """Return a batch without memory, of as many rows, in the tiles it would have."""
    whole = meta(torch.int32, 8)
    tiles = SLOTS + rows // tile_rows_for(rows)
    return Batch(
        rows=rows,
        has_adapters=True,
        grouped=Grouped.of(np.array([0], np.int32), np.array([rows], np.int32)),
        max_pages=1,
        row_order=whole,
        segment_starts=whole,
        segment_slots=whole,
        row_slots=whole,
        tiles=meta(torch.int32, 3 * tiles),
        units=meta(torch.int32, 4 * tiles),
        counts=whole,
        tile_rows=tile_rows_for(rows),
    )
