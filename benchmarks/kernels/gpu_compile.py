"""The GPU kernels compiled for sm_90 as the launches would compile them, on any machine: Triton brings its own ptxas.

    python -m benchmarks.kernels.gpu_compile [--out FILE] [SITE:PAGES ...]     # qkv:bf16, o:fp8e4nv; default: all

prints a table and, with --out, writes it as JSON. Triton must be importable.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lora_kernels.metadata import PREFILL_TILE_ROWS, TILE_ROWS
from lora_kernels.spec import PoolSpec, SiteSpec
from lora_kernels.storage import SiteStorage, allocate_site
from lora_kernels.triton import tuning
from lora_kernels.triton.embed import embed_kernel
from lora_kernels.triton.expand import expand_kernel
from lora_kernels.triton.launch import SitePlan, expand_sizes, shrink_sizes
from lora_kernels.triton.shrink import shrink_kernel

TARGET = GPUTarget("cuda", 90, 32)
# Llama-3-8B.
SITES = (
    SiteSpec("qkv", 4096, (4096, 1024, 1024)),
    SiteSpec("o", 4096, (4096,)),
    SiteSpec("gate_up", 4096, (14336, 14336)),
    SiteSpec("down", 14336, (4096,)),
)
PAGES = {torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8e4nv"}
INT32 = {"units", "tiles", "counts", "row_order", "row_slots", "page_table", "live", "blocks"}
FLOAT32 = {"v", "page_scales", "rank_scales"}
ACTIVATIONS = {"x", "y"}
WEIGHTS = {"a", "b"}
# What the launcher finds divisible by 16 in a model's tensors: addresses of allocations, and strides and sizes of these
# sites. Rows of `live` and the parts of the packed metadata begin anywhere.
UNALIGNED = {"live", "units", "tiles", "counts", "row_order", "row_slots", "page_table"}
DIVISIBLE = {"x_stride", "y_stride", "v_row", "v_slice", "v_plane", "k_size",
             "padded_k", "n_size", "max_pages"}  # fmt: skip


ROW = (
    "{kernel:12} {site:7} {pages:7} {tile_rows:>4} {registers:>9} {spills:>6} {shared:>6} {async_copies:>5} {wide:>4}"
    " {mma}"
)  # fmt: skip
HEADER = "kernel       site    pages   rows registers spills shared async 16 B mma"


@dataclass(frozen=True)
class Compiled:
    """What ptxas made of one kernel. `shared` in bytes; `wide` counts 16-byte global loads and copies to shared memory;
    `spills` counts instructions that move registers to local memory or back.

    mma: the tensor-core instruction, on which the order of a sum depends ("wgmma", "mma" or "")
    """

    kernel: str
    site: str
    pages: str
    tile_rows: int
    registers: int
    spills: int
    shared: int
    async_copies: int
    wide: int
    mma: str
    dependent_launch: bool
    triton: str


def compile_all(wanted: list[str], device_name: str = "NVIDIA H200") -> Iterator[Compiled]:
    """Every kernel for the sites and page types named "site:pages" (all if none is), with that GPU's configuration."""
    for site in SITES:
        for dtype, pages in PAGES.items():
            if not wanted or f"{site.name}:{pages}" in wanted:
                yield from compile_site(site, dtype, device_name)


def compile_site(site: SiteSpec, dtype: torch.dtype, device_name: str) -> Iterator[Compiled]:
    """Shrink and expand in decode and prefill, the first write, and in decode the embedding."""
    config = tuning.configured(site.in_features, site.slices, device_name)
    meta = torch.device("meta")
    spec = PoolSpec((site,), 1)
    storage = allocate_site(spec, site, 2, torch.empty(1, 1, device=meta), [[0]], dtype, meta)
    slices, size = storage.a.shape[2:4]
    plan = SitePlan(config, 132, config.pdl, triton.next_power_of_2(slices * size), 16)
    for rows, planes, shrink, expand in (
        (TILE_ROWS, config.split, config.shrink, config.expand),
        (PREFILL_TILE_ROWS, 1, config.prefill_shrink, config.prefill_expand),
    ):
        sizes = shrink_sizes(storage, rows, planes, plan, shrink)
        yield _compile(shrink_kernel, sizes, storage)
        yield _compile(expand_kernel, expand_sizes(storage, rows, planes, plan, expand, add=True), storage)
        yield _compile(expand_kernel, expand_sizes(storage, rows, planes, plan, expand, add=False), storage, " first")
    if len(site.slices) == 1:
        sizes = shrink_sizes(storage, TILE_ROWS, config.split, plan, config.shrink)
        yield _compile(embed_kernel, sizes, storage)


def _compile(
    kernel: triton.JITFunction, sizes: dict[str, int | bool], storage: SiteStorage, note: str = ""
) -> Compiled:
    names = kernel.arg_names
    constants: dict[str, object] = {name: sizes[name] for name in names if name in sizes}
    options = {name: value for name, value in sizes.items() if name not in constants and name.islower()}
    pages = PAGES[storage.a.dtype]
    if pages != "fp8e4nv" and "rank_scales" in names:
        constants["rank_scales"] = None
    signature = {name: "constexpr" if name in constants else _type(name, pages) for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name in DIVISIBLE or (signature[name].startswith("*") and name not in UNALIGNED)
    }
    source = ASTSource(
        kernel, signature, constexprs={(names.index(name),): value for name, value in constants.items()}, attrs=aligned
    )
    built = triton.compile(source, target=TARGET, options=options)
    ptx = built.asm["ptx"]
    registers, spilled = _resources(built.asm["cubin"])
    copies = len(re.findall(r"cp\.async\.cg\.shared\.global\s*\[[^]]*\], \[[^]]*\], (?:0x10|16)", ptx))
    return Compiled(
        kernel=kernel.__name__.removesuffix("_kernel") + note,
        site=storage.spec.name,
        pages=pages,
        tile_rows=int(sizes["TILE_ROWS"]),
        registers=registers,
        spills=spilled,
        shared=built.metadata.shared,
        async_copies=copies,
        wide=copies + len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) + len(re.findall(r"ld\.global\S*\.v2\.b64", ptx)),
        mma="wgmma" if "wgmma.mma_async" in ptx else "mma" if "mma.sync" in ptx else "",
        dependent_launch="griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx,
        triton=triton.__version__,
    )


def _type(name: str, pages: str) -> str:
    for names, kind in ((INT32, "*i32"), (FLOAT32, "*fp32"), (ACTIVATIONS, "*bf16"), (WEIGHTS, f"*{pages}")):
        if name in names:
            return kind
    return {"tokens": "*i64"}.get(name, "i32")


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and instructions that touch local memory, which are spills: these kernels index no local array."""
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(cuobjdump), "-res-usage", "-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    registers = re.search(r"REG:(\d+)", text)
    if registers is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {text[:500]}")
    return int(registers[1]), len(re.findall(r"\b(?:LDL|STL)\b", text))


def main(arguments: list[str] | None = None) -> int:
    """0 when no kernel spills, 1 when one does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.gpu_compile", description=__doc__)
    parser.add_argument("wanted", nargs="*", metavar="SITE:PAGES")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    print(HEADER)
    rows = []
    for compiled in compile_all(options.wanted):
        rows.append(asdict(compiled))
        print(ROW.format(**rows[-1]), flush=True)
    if options.out:
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        options.out.write_text(f"[\n{lines}\n]\n")
    return int(any(row["spills"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
