"""Runs one program of a stage: `python -m benchmarks.gpu.program MODULE [ARGUMENTS …]`.

Leaves out what $GPU_RUN_WITHOUT names ("pdl", "graphs"), and turns what went wrong into an exit status that the run
understands.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.stages import OUT_OF_MEMORY, WITHOUT, WRONG


class EagerGraph:
    """Launches a computation anew in place of a replay."""

    def __init__(self, compute: Callable[[], object]) -> None:
        self._compute = compute

    def replay(self) -> None:
        """Compute again."""
        with torch.inference_mode():
            self._compute()


class EagerGraphs:
    """`serving.runner.graphs.Graphs` that captures nothing."""

    def record(self, compute: Callable[[], object]) -> EagerGraph:
        """Compute once."""
        compute()
        return EagerGraph(compute)


def leave_out(names: str) -> None:
    """Switch mechanisms off in this process, before anything uses them."""
    wanted = set(filter(None, names.split(",")))
    if "pdl" in wanted:
        _launch_one_after_another()
    if "graphs" in wanted:
        from serving.runner import graphs

        graphs.CudaGraphs = EagerGraphs  # type: ignore[assignment,misc]


def _launch_one_after_another() -> None:
    """Start no kernel before the one ahead of it has ended: no launch asks for it, and no kernel waits in it."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in ("launch_pdl", "PDL"):
            if kwargs.get(name):
                kwargs[name] = False
        return run(self, *args, **kwargs)

    JITFunction.run = plain


def main() -> int:
    """Run the module as a command. Returns the exit status."""
    _, module, *arguments = sys.argv
    leave_out(os.environ.get(WITHOUT, ""))
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except torch.OutOfMemoryError:
        traceback.print_exc()
        return OUT_OF_MEMORY
    except AssertionError:
        traceback.print_exc()
        return WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
