"""The table of all compiled kernels: which variants there are now, and which of them a file already holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import triton

from benchmarks.gpu.compile import lora, packed, serving
from benchmarks.gpu.compile.build import build
from benchmarks.gpu.compile.variant import Variant, variants

Row = dict[str, Any]
SHOWN = ("registers", "spills", "shared", "instructions", "per_4k_of_b", "async_copies")


def current(*, small: bool = False, kernels: Iterable[str] = ()) -> list[Variant]:
    """Return the variants that launches reach now, those of the tests alone, or those whose kernel's name begins so.

    The tests compile one variant of each kernel, tile and LoRA page type; the table has all of them.
    """
    launches = (one for room in (packed, lora, serving) for one in room.launches() if one[0].small or not small)
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
    for variant in wanted:
        row = by_digest.get(variant.digest)
        if row is None:
            row = asdict(build(variant))
            shown = (f"{name} {row[name]}" for name in SHOWN)
            print(f"{variant.name:17} {row['dtypes']}, {variant.uses[0].shape}: {', '.join(shown)}", flush=True)
        yield row


def stale(rows: Iterable[Row], versions: Iterable[str]) -> list[str]:
    """Return the kernels of which a version of Triton has no row for the present source and launches."""
    known = {(row["triton"], row["digest"]) for row in rows}
    wanted = [(version, variant) for version in versions for variant in current()]
    return sorted({f"{one.name} ({version})" for version, one in wanted if (version, one.digest) not in known})
