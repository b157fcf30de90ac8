"""A base in 4 and 8 bits beside its bfloat16 twin: memory, a lone client's predictions per second, right answers.

    python -m benchmarks.packed_base [--gguf FILE] [--rounds 5] [--threads 2] [--out FOLDER]

The sample base's GGUF file is converted twice, once with --packed. Two replicas serve both folders with the sample
adapters. Each answers all held-out rows, one client at a time; then new rows are asked of both, turn by turn: the ratio
is the median over the turns. An answer that differs ends the run, for both compute the same numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from benchmarks import machine
from benchmarks.contracts import replica
from benchmarks.packed_base.report import report
from benchmarks.speculation.__main__ import new_rows, turn
from devstack.bootstrap import base_gguf
from devstack.state import State
from examples.data import TASKS
from examples.score import is_right, read_heldout
from serving.kernels.library import load_library
from serving.models.config import ModelConfig
from serving.models.convert_gguf import convert
from serving.models.packed import load_packed

ROWS_A_TURN = 24


def weight_bytes(folder: Path, threads: int) -> int:
    """Return the bytes of linears, head and embedding as a replica holds them. Raises SystemExit without C kernels."""
    import torch

    library = load_library()
    if library is None:
        raise SystemExit("the C kernels do not compile here: a packed base needs them")
    return load_packed(library, folder, ModelConfig.from_dir(folder), torch.bfloat16, threads).nbytes


async def measure(packed: str, wide: str, rounds: int) -> dict[str, Any]:
    """Measure two replicas by their URLs. Raises SystemExit where an answer differs."""
    async with (
        httpx.AsyncClient(base_url=packed, timeout=600) as one,
        httpx.AsyncClient(base_url=wide, timeout=600) as other,
    ):
        clients = (one, other)
        right: dict[str, list[int]] = {}
        rows_of = {task: len(read_heldout(task)) for task in TASKS}
        for task in TASKS:
            rows = read_heldout(task)
            asked = [(task, row["messages"][-1:]) for row in rows]
            turns = [await turn(client, asked, 1, drafts=True, most=None) for client in clients]
            right[task] = [
                sum(is_right(each.texts[place], row["expected"]) for place, row in enumerate(rows)) for each in turns
            ]
            _check(turns)
        mixed = itertools.cycle(
            (task, messages)
            for group in zip(*map(new_rows, TASKS), strict=True)
            for task, messages in zip(TASKS, group, strict=True)
        )
        rates: dict[str, list[list[float]]] = {"with drafts": [], "without": []}
        for (name, drafts), number in itertools.product((("with drafts", True), ("without", False)), range(rounds)):
            asked = list(itertools.islice(mixed, ROWS_A_TURN))
            order = clients if number % 2 else clients[::-1]
            found = {client: await turn(client, asked, 1, drafts=drafts, most=None) for client in order}
            _check(list(found.values()))
            rates[name].append([found[client].a_second for client in clients])
        return {"rows": rows_of, "right": right, "predictions_a_second": rates}


def _check(turns: list[Any]) -> None:
    if turns[0].texts != turns[1].texts:
        raise SystemExit("an answer of the packed base differs from its bfloat16 twin's: that must never be")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, default=None, help="default: the sample base's file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder of the results")
    arguments = parser.parse_args()
    about, source = machine.describe(), arguments.gguf or base_gguf(State.open())
    with tempfile.TemporaryDirectory() as root:
        folders = {"packed": Path(root) / "packed", "bfloat16": Path(root) / "bfloat16"}
        for name, folder in folders.items():
            convert(source, folder, lambda _: None, packed=name == "packed")
        measured: dict[str, Any] = {
            "bytes": {name: weight_bytes(folder, arguments.threads) for name, folder in folders.items()}
        }
        flags = ("--dtype", "bfloat16")
        with (
            replica(folders["packed"], arguments.threads, *flags) as packed,
            replica(folders["bfloat16"], arguments.threads, *flags) as wide,
        ):
            measured |= asyncio.run(measure(packed, wide, arguments.rounds))
    lines, fine = report(measured)
    print("\n".join(lines))
    folder = arguments.out or machine.RESULTS / machine.cpu_kind(about)
    print(machine.write_suite(folder, "packed_base", {"machine": about, **measured}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
