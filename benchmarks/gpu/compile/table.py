"""The table of all compiled kernels: which variants there are now, and which of them a file already holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import triton

from benchmarks.gpu.compile import grouped, lora, scaled, serving
from benchmarks.gpu.compile.build import build
from benchmarks.gpu.compile.variant import Variant, variants

Row = dict[str, Any]
HEADER = "kernel            dtype      rows registers spills shared instructions  per 4 KB async 16 B mma   use"
LINE = (
    "{kernel:17} {dtype:10} {rows:>4} {registers:>9} {spills:>6} {shared:>6} {instructions:>12} {per_4k:>9}"
    " {async_copies:>5} {wide:>4} {mma:5} {shape}"
)


def current(*, small: bool = False, kernels: Iterable[str] = ()) -> list[Variant]:
    """Return the variants that launches reach now, those of the tests alone, or those whose kernel's name begins so.

    The tests compile one variant of each kernel, tile and LoRA page type; the table has all of them.
    """
    launches = (
        one for room in (grouped, lora, scaled, serving) for one in room.launches() if one[0].small or not small
    )
    wanted = tuple(kernels)
    found = [one for one in variants(launches) if not wanted or one.name.startswith(wanted)]
    if not small:
        return found
    one_each: dict[object, Variant] = {}
    for variant in found:
        constants = variant.constants
        key = (variant.name, *(constants.get(name) for name in ("TILE_ROWS", "FP8" if "SLICES" in constants else "")))
        one_each.setdefault(key, variant)
    return list(one_each.values())


def compiled(wanted: Iterable[Variant], known: Iterable[Row] = ()) -> Iterator[Row]:
    """Yield the rows of these variants for this process's Triton; those whose digest is known are not compiled."""
    by_digest = {row["digest"]: row for row in known if row["triton"] == triton.__version__}
    print(HEADER, flush=True)
    for variant in wanted:
        row = by_digest.get(variant.digest)
        if row is None:
            row = asdict(build(variant))
            print(line(row, variant), flush=True)
        yield row


def stale(rows: Iterable[Row], versions: Iterable[str]) -> list[str]:
    """Return the kernels of which a version of Triton has no row for the present source and launches."""
    known = {(row["triton"], row["digest"]) for row in rows}
    wanted = [(version, variant) for version in versions for variant in current()]
    return sorted({f"{one.name} ({version})" for version, one in wanted if (version, one.digest) not in known})


def line(row: Row, variant: Variant) -> str:
    """Return a row as a table prints it, with the first of its uses."""
    first, more = variant.used[0], len(variant.used) - 1
    shape = first["shape"] + (f" and {more} more" if more else "")
    per_4k = " ".join(map(str, row["per_4k_of_b"]))
    return LINE.format(**{**row, "dtype": first["dtype"], "rows": first["rows"][0], "per_4k": per_4k, "shape": shape})
