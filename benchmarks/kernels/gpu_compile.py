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

from lora_kernels import PoolSpec, SiteSpec
from lora_kernels.batch import PREFILL_TILE_ROWS, TILE_ROWS
from lora_kernels.ops import tuning
from lora_kernels.ops.expand import expand_kernel, expand_sizes
from lora_kernels.ops.launch import BatchArguments, PlanesArguments, SiteArguments, SitePlan
from lora_kernels.ops.shrink import shrink_kernel, shrink_sizes
from lora_kernels.storage.site import SiteStorage
from lora_kernels.storage.store import PageStore
from lora_kernels.training.embed import embed_kernel

TARGET = GPUTarget("cuda", 90, 32)
# Llama-3-8B.
SITES = (
    SiteSpec("qkv", 4096, (4096, 1024, 1024)),
    SiteSpec("o", 4096, (4096,)),
    SiteSpec("gate_up", 4096, (14336, 14336)),
    SiteSpec("down", 14336, (4096,)),
)
PAGES = {torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8e4nv"}
BATCH = BatchArguments(tiles="*i32", units="*i32", counts="*i32", row_order="*i32", row_slots="*i32")
PLANES = PlanesArguments(data="*fp32", row_stride="i32", slice_stride="i32", plane_stride="i32")
OTHERS = {"x": "*bf16", "y": "*bf16", "tokens": "*i64", "blocks": "*i32"}
# The values that the launcher finds divisible by 16 in a model's tensors: addresses of allocations, and strides and
# sizes of these sites. Rows of `live` and the parts of the packed metadata begin anywhere.
UNALIGNED = {"live", "page_table", *BatchArguments._fields}
DIVISIBLE = {
    "x_stride",
    "y_stride",
    "row_stride",
    "slice_stride",
    "plane_stride",
    "k_size",
    "padded_k",
    "n_size",
    "max_pages",
}
ROW = (
    "{kernel:12} {site:7} {pages:7} {tile_rows:>4} {registers:>9} {spills:>6} {shared:>6} {async_copies:>5} {wide:>4}"
    " {mma}"
)
HEADER = "kernel       site    pages   rows registers spills shared async 16 B mma"


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel, as ptxas reports it.

    `shared` is in bytes; `wide` counts 16-byte global loads and copies to shared memory; `spills` counts instructions
    that move registers to local memory or back.

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
    storage = PageStore(PoolSpec((site,), 1), 1, 1, dtype, torch.device("meta"), in_blocks=False).site(site.name)
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
    pages = PAGES[storage.a.dtype]
    arguments = {name: "constexpr" if name in sizes else _type(name, pages) for name in names}
    constants: dict[tuple[int, ...], object] = {(names.index(name),): sizes[name] for name in names if name in sizes}
    if pages != "fp8e4nv":
        constants[names.index("site"), SiteArguments._fields.index("rank_scales")] = None
    options = {name: value for name, value in sizes.items() if name not in names and name.islower()}
    aligned = {path: [["tt.divisibility", 16]] for path, name, kind in _flat(arguments) if _is_aligned(name, kind)}
    source = ASTSource(kernel, arguments, constexprs=constants, attrs=aligned)
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


def _type(name: str, pages: str) -> str | tuple[object, ...]:
    """Return Triton's type of an argument; structs keep their fields' names."""
    if name == "site":
        rank_scales = "*fp32" if pages == "fp8e4nv" else "constexpr"
        return SiteArguments(f"*{pages}", rank_scales, "*i32", "*i32", "*fp32", "i32")
    return {"batch": BATCH, "v": PLANES}.get(name) or OTHERS.get(name, "i32")


def _flat(arguments: dict[str, str | tuple[object, ...]]) -> Iterator[tuple[tuple[int, ...], str, str]]:
    """Yield path, name and type of every argument, those within structs one by one."""
    for index, (name, kind) in enumerate(arguments.items()):
        if isinstance(kind, str):
            yield (index,), name, kind
        else:
            for place, (field, inner) in enumerate(kind._asdict().items()):  # type: ignore[attr-defined]
                yield (index, place), field, inner


def _is_aligned(name: str, kind: str) -> bool:
    return name in DIVISIBLE or (kind.startswith("*") and name not in UNALIGNED)


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
