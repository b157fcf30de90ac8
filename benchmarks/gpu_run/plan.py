"""The stages of a first run, in their order: nothing is measured before it is known to be right."""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.gpu_run.stages import Stage

PROGRAM = ("-m", "benchmarks.gpu_run.program")


def _stage(name: str, group: str, share: float, *arguments: str, suspects: bool = False) -> Stage:
    return Stage(name, group, (*PROGRAM, *arguments), share, suspects)


def _pytest(file: str) -> tuple[str, ...]:
    return ("pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "gpu", file)


STAGES = (
    _stage("kernels of the forward pass", "correctness", 2, "tests.serving.kernels.triton_cases", suspects=True),
    _stage("runner against plain torch", "correctness", 3, "tests.serving.runner.gpu_cases", suspects=True),
    _stage("LoRA kernels", "correctness", 3, *_pytest("tests/lora_kernels/test_triton_gpu.py"), suspects=True),
    _stage("the same numbers twice", "correctness", 1, "benchmarks.gpu_run.steady", suspects=True),
    # Last, and alone: what it does to streams and captures may leave a process unusable.
    _stage("loads that arrive while others serve", "correctness", 1, *_pytest("tests/lora_kernels/test_staging.py")),
    _stage("kernels of one layer", "figures", 3, "benchmarks.gpu_run.kernels"),
    _stage("whole steps", "figures", 6, "benchmarks.gpu_run.steps"),
    _stage("attention beside its limit and SDPA", "figures", 2, "benchmarks.gpu_run.attention"),
    _stage("LoRA kernels beside peers", "figures", 3, "benchmarks.gpu_run.peers"),
    _stage("launch sizes", "sweep", 4, "benchmarks.gpu_run.sweep"),
    _stage("kernels of one layer again", "sweep", 1, "benchmarks.gpu_run.kernels"),
    _stage("DRAM throughput and issue slots", "profile", 3, "benchmarks.gpu_run.profile"),
)


def stages_of(groups: Collection[str]) -> tuple[Stage, ...]:
    """Return the stages of some groups, in the order of the run."""
    return tuple(stage for stage in STAGES if stage.group in groups)
