"""The file that a calibration writes: the step-time model of one model on one machine, and what it was measured on."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Literal

import msgspec

from capacity.errors import PlanRefused
from capacity.steps import PRIOR, Probes, StepModel
from serving.scheduler.limits import Limits

FORMAT = 2
MEASURED, OVER_HTTP = "measured", "measured over HTTP"
# The error that step times have which were carried over from another machine.
CARRIED_ERROR = 0.3
# The least that a fit's error is taken to be: no calibration is surer, and one from outside sees no single step.
UNSTEADY = 0.05  # a drift above which every page of a plan says so
_LEAST_ERROR = {MEASURED: 0.02, OVER_HTTP: 0.05}
_LARGEST = 4 << 20


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that was measured."""

    cpu: str
    cores: int
    threads: int
    gpu: str | None
    torch: str
    python: str


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The base model. weight_bytes, block_bytes: as the replica keeps its weights and one block of KV"""

    name: str
    fingerprint: str
    dtype: str
    layers: int
    weight_bytes: int
    block_bytes: int
    max_len: int
    hidden: int
    kv_heads: int


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """The replica's limits. blocks: of KV; pages: of adapter memory; workers: loads at once"""

    max_batched_tokens: int
    max_num_seqs: int
    max_queue: int
    min_prefill_tokens: int
    block_size: int
    blocks: int
    slots: int
    pages: int
    page_bytes: int
    workers: int
    load_pause: float
    depth: int

    @property
    def limits(self) -> Limits:
        """Return the planner's limits."""
        return Limits(
            self.max_batched_tokens,
            self.max_num_seqs,
            self.max_queue,
            min_prefill_tokens=self.min_prefill_tokens,
        )


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The fit's errors on what it did not see. steps: measured; median, p90: of relative errors

    drift: how far the machine was from its own profile in the farthest pass, as a share

    Over HTTP: on the figures of cells that it did not see; `steps` are the tokens that were timed.
    """

    steps: int
    median: float
    p90: float
    drift: float = 0.0


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One calibration. load_seconds: of cold loads on an idle replica; load_speed: how fast loads go on beside steps

    example: the figures are invented, and every page of a plan says so
    own_clock: whether times are the processors' seconds, of one thread, instead of the wall's
    source: how it was measured, on the engine or over HTTP. Over HTTP there are no probes (0), and no loads where the
        replica lists no adapters
    http_seconds: from a client to the engine, in the time to a first token
    """

    format: int = FORMAT
    made_at: str
    commit: str
    own_clock: bool
    machine: Machine
    model: Model
    replica: Replica
    coefficients: dict[str, float]
    shape: tuple[float, ...]
    residuals: tuple[float, ...]
    load_seconds: tuple[float, ...]
    load_speed: float
    probe_read: float
    probe_gemm: float
    quality: Quality
    transferred: bool = False
    example: bool = False
    source: Literal["measured", "measured over HTTP"] = "measured"
    http_seconds: float = 0.0

    @property
    def over_http(self) -> bool:
        """Return whether the replica was measured from outside."""
        return self.source == OVER_HTTP

    @property
    def error(self) -> float:
        """Return how far step times are taken to be off, as a share: intervals are at least as wide."""
        least = CARRIED_ERROR if self.transferred else _LEAST_ERROR[self.source]
        return max(least, self.quality.median, self.quality.drift)

    @property
    def steps(self) -> StepModel:
        """Return the step-time model."""
        return StepModel(self.coefficients, self.shape, self.residuals)

    @property
    def probes(self) -> Probes:
        """Return the machine's probes."""
        return Probes(self.probe_read, self.probe_gemm)


def read_profile(path: Path) -> Profile:
    """Read and check a profile. Raises PlanRefused with what is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanRefused(8, f"{path}: {error.strerror}; `python -m capacity calibrate` writes one") from error
    if len(data) > _LARGEST:
        raise PlanRefused(8, f"{path}: {len(data)} bytes are no profile")
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.MsgspecError as error:
        raise PlanRefused(8, f"{path} is no profile: {error}") from error
    check(profile, str(path))
    return profile


def check(profile: Profile, name: str) -> None:
    """Raise PlanRefused for a profile whose numbers cannot be."""
    numbers = [*profile.coefficients.values(), *profile.load_seconds]
    if not profile.over_http:
        numbers += [profile.probe_read, profile.probe_gemm]
    if profile.format != FORMAT:
        raise PlanRefused(8, f"{name}: format {profile.format}, this version reads {FORMAT}; calibrate again")
    if profile.coefficients.keys() != PRIOR.keys():
        raise PlanRefused(8, f"{name}: the coefficients of another version; calibrate again")
    if not all(0 < number < 1e18 for number in numbers) or not 0 <= profile.load_speed <= 1.5:
        raise PlanRefused(8, f"{name}: coefficients, loads and probes must be above 0 and finite")
    if not 0 <= profile.http_seconds < 60:
        raise PlanRefused(8, f"{name}: {profile.http_seconds:g} s from a client to the engine")
    if not profile.residuals or not (profile.load_seconds or profile.over_http):
        raise PlanRefused(8, f"{name}: no loads or no residuals were measured; calibrate again")
    sizes = profile.replica
    if min(sizes.max_batched_tokens, sizes.max_num_seqs, sizes.blocks, sizes.slots, sizes.pages) < 1:
        raise PlanRefused(8, f"{name}: a replica without rows, seats, KV or adapters serves nothing")


def warnings_of(profile: Profile, *, commit: str | None = None, fingerprint: str | None = None) -> tuple[str, ...]:
    """Return what stays on every page of a plan that is made with this profile.

    commit, fingerprint: of the code and the base model that the plan is for; None: not compared
    """
    said = []
    if commit is not None and profile.commit not in ("", commit):
        said.append(
            f"The profile was measured at commit {profile.commit[:12]}; this is {commit[:12]}. Calibrate again."
        )
    if fingerprint is not None and fingerprint != profile.model.fingerprint:
        said.append(
            f"The profile was measured with another base model ({profile.model.name}, "
            f"{profile.model.fingerprint[:12]}); the plan is for {fingerprint[:12]}."
        )
    if profile.example:
        said.append(f"The profile of {profile.model.name} is invented: no machine was timed. Calibrate one.")
    if profile.own_clock:
        said.append("The profile counts processor seconds of one thread: it says nothing about a replica's wall time.")
    if profile.quality.drift > UNSTEADY:
        said.append(
            f"The machine of {profile.model.name} was {100 * profile.quality.drift:.0f} % off its own profile in one "
            "pass of the calibration: intervals are at least as wide. Calibrate again when its neighbours are quiet."
        )
    if profile.over_http:
        said.append(
            "The profile was measured over HTTP, from figures of whole cells: intervals are wider than those of "
            "`calibrate --model`. Loads beside steps were not timed."
        )
    if profile.transferred:
        said.append("The step times were carried over from another machine by two probes: a factor of 1.3 either way.")
    return tuple(said)


def current_commit(folder: Path | None = None) -> str:
    """Return the commit of the checkout that this code runs from; empty where there is none."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=folder or Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
