"""One variant compiled for sm_90, and the figures that its machine code shows."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.compiler import ASTSource

from benchmarks.gpu.compile.variant import TARGET, Variant

BYTES_OF_B = 4096
WARPS = 4


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel, as ptxas and its disassembly report it.

    dtypes: of its uses; tile: rows of a program, 0 where the kernel has none
    spills: instructions that move registers to local memory or back; spill_bytes: local memory of a thread
    shared: bytes of shared memory of a program
    instructions: of the whole kernel
    buffers: tiles of K and V that attention's shared memory holds, each; else 0
    per_4k_of_b: for expand, the same for 4 KB of B, by four warps: of a slot of one page, and of many
    async_copies: 16-byte copies to shared memory
    dependent_launch: 1 where it waits for the launch before it and lets the next one begin, else 0
    """

    triton: str
    digest: str
    kernel: str
    dtypes: str
    tile: int
    registers: int
    spills: int
    spill_bytes: int
    shared: int
    instructions: int
    buffers: int
    per_4k_of_b: list[int]
    async_copies: int
    dependent_launch: int


def build(variant: Variant) -> Compiled:
    """Compile a variant with the Triton of this process."""
    source = ASTSource(variant.kernel, variant.signature, constexprs=variant.constexprs, attrs=variant.attrs)
    built = triton.compile(source, target=TARGET, options=variant.options)
    ptx = built.asm["ptx"]
    text = _disassembled(built.asm["cubin"])
    code = _instructions(text)
    loops = _product_loops(code)
    copies = len(re.findall(r"cp\.async\.cg\.shared\.global\s*\[[^]]*\], \[[^]]*\], (?:0x10|16)", ptx))
    return Compiled(
        triton=triton.__version__,
        digest=variant.digest,
        kernel=variant.name,
        dtypes=" ".join(sorted({use.dtype for use in variant.uses})),
        tile=variant.constants.get("ROWS") or 0,
        registers=_number(r"REG:(\d+)", text),
        spills=sum(name.split(".")[0] in ("LDL", "STL") for _, name, _ in code),
        spill_bytes=_number(r"STACK:(\d+)", text),
        shared=built.metadata.shared,
        instructions=len(code),
        buffers=_buffers(variant, built.metadata.shared),
        per_4k_of_b=_per_4k(variant, loops),
        async_copies=copies,
        dependent_launch=int("griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx),
    )


def _buffers(variant: Variant, shared: int) -> int:
    """Return how many tiles of K and V the shared memory of an attention kernel holds, each."""
    constants = variant.constants
    if "BLOCK_KV" not in constants:
        return 0
    dtype = variant.uses[0].dtype
    size = 1 if "fp8" in dtype else 4 if dtype == "fp32" else 2
    return int(shared // (2 * constants["BLOCK_KV"] * constants["DIM"] * size))


def _disassembled(cubin: bytes) -> str:
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(cuobjdump), "-res-usage", "-sass", file.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"cuobjdump does not print {pattern}: {text[:500]}")
    return int(found[1])


def _instructions(text: str) -> list[tuple[int, str, int | None]]:
    """Return address, name and, for a branch, the address it goes to, of each instruction but the padding."""
    code: list[tuple[int, str, int | None]] = []
    for address, guarded, rest in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?(\S[^;]*);", text):
        name, _, operands = rest.partition(" ")
        target = re.search(r"0x([0-9a-f]+)$", operands.strip()) if name.startswith("BRA") else None
        where = int(target[1], 16) if target else None
        code.append((int(address, 16), name, where))
        if name == "BRA" and not guarded and where == code[-1][0]:  # a branch to itself: padding follows
            code.pop()
            break
    return [one for one in code if one[1] != "NOP"]


def _product_loops(code: list[tuple[int, str, int | None]]) -> list[tuple[int, int]]:
    """Return the instructions, and the matrix products among them, of each innermost loop that holds any."""
    spans = [(target, address) for address, _, target in code if target is not None and target <= address]
    names = {span: [name for address, name, _ in code if span[0] <= address <= span[1]] for span in spans}
    products = {span: sum("MMA" in name for name in inside) for span, inside in names.items()}
    holding = [span for span in spans if products[span]]
    innermost = [
        span
        for span in holding
        if not any(other != span and span[0] <= other[0] and other[1] <= span[1] for other in holding)
    ]
    return sorted((len(names[span]), products[span]) for span in innermost)


def _per_4k(variant: Variant, loops: list[tuple[int, int]]) -> list[int]:
    """Return the warp instructions of expand's loops for 4 KB of B, by four warps."""
    constants = variant.constants
    if not variant.name.startswith("expand"):
        return []
    bits = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8e4nv": 8}[str(variant.signature["site"][0]).removeprefix("*")]
    # One product of a warp is 16 rows, 16 ranks and 8 columns; every 16 rows take the same B again.
    bytes_of_one = 16 * 8 * bits // 8 * 16 / constants["ROWS"]
    return [round(count * BYTES_OF_B / (products * bytes_of_one * WARPS)) for count, products in loops]
