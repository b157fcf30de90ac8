"""The stages of a first run, in their order: nothing is measured before it is known to be right."""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.gpu_run.stages import ROOT, Stage

# Packages for launches that do nothing.
NOT_ON_CUDA = ("host_cases",)
PROGRAM = ("-m", "benchmarks.gpu_run.program")


def _stage(name: str, group: str, share: float, *arguments: str, suspects: bool = False) -> Stage:
    return Stage(name, group, (*PROGRAM, *arguments), share, suspects)


def _pytest(file: str) -> tuple[str, ...]:
    return ("pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "gpu", file)


def _case_programs() -> tuple[Stage, ...]:
    """Return a stage per program of cases of kernels, then of runners: each compares with plain torch."""
    return tuple(
        _stage(file.stem.replace("_", " "), "correctness", 2, f"tests.serving.{folder}.{file.stem}", suspects=True)
        for folder in ("kernels", "runner")
        for file in sorted((ROOT / "tests" / "serving" / folder).glob("*_cases.py"))
        if file.stem not in NOT_ON_CUDA and "__main__" in file.read_text("utf-8")
    )


STAGES = (
    *_case_programs(),
    _stage("LoRA kernels", "correctness", 3, *_pytest("tests/lora_kernels/test_triton_gpu.py"), suspects=True),
    _stage("the same numbers twice", "correctness", 1, "benchmarks.gpu_run.steady", suspects=True),
    # Last, and alone: what it does to streams and captures may leave a process unusable.
    _stage("loads that arrive while others serve", "correctness", 1, *_pytest("tests/lora_kernels/test_staging.py")),
    _stage("kernels of one layer", "figures", 3, "benchmarks.gpu_run.kernels"),
    _stage("whole steps", "figures", 6, "benchmarks.gpu_run.steps"),
    _stage("attention beside its limit and SDPA", "figures", 2, "benchmarks.gpu_run.attention"),
    _stage("LoRA kernels beside peers", "figures", 3, "benchmarks.gpu_run.peers"),
    _stage("transformers and PEFT", "figures", 2, "benchmarks.gpu_run.peft"),
    _stage("launch sizes", "sweep", 4, "benchmarks.gpu_run.sweep"),
    _stage("kernels of one layer again", "sweep", 1, "benchmarks.gpu_run.kernels"),
    _stage("DRAM throughput and issue slots", "profile", 3, "benchmarks.gpu_run.profile"),
)


def stages_of(groups: Collection[str]) -> tuple[Stage, ...]:
    """Return the stages of some groups, in the order of the run."""
    return tuple(stage for stage in STAGES if stage.group in groups)
