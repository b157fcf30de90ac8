"""Step 8, calibration: runs the grid on a real engine in a child process, fits its steps, and makes the profile."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from capacity.child import lines_of
from capacity.errors import PlanRefused
from capacity.fit_steps import fit
from capacity.profile import Machine, Model, Profile, Quality, Replica, check, current_commit
from capacity.results import Source, Step
from capacity.steps import SHARES
from serving.simulation.work import StepWork

MOST_SECONDS = 120.0
LOADS_KEPT = 64
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Measured:
    """The lines of a calibration's child, by kind."""

    about: dict[str, Any] = field(default_factory=dict)
    works: list[StepWork] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    loads: list[tuple[float, float, float]] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    gemms: list[float] = field(default_factory=list)
    cells: list[list[dict[str, Any]]] = field(default_factory=list)
    references: list[tuple[int, StepWork, float]] = field(default_factory=list)


def take(lines: Iterable[Mapping[str, Any]], progress: Progress = lambda done, of: None) -> Measured:
    """Read the child's lines. Raises PlanRefused for one that is no measurement."""
    found = Measured()
    for line in lines:
        rest = {name: value for name, value in line.items() if name != "kind"}
        try:
            _take(found, line["kind"], rest, progress)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanRefused(8, f"the engine's process printed a {line['kind']} that cannot be read") from error
    return found


def _take(found: Measured, kind: str, rest: dict[str, Any], progress: Progress) -> None:
    if kind == "about":
        found.about = rest
    elif kind == "step":
        found.passes.append(int(rest.pop("pass")))
        found.seconds.append(float(rest.pop("seconds")))
        found.works.append(StepWork(**rest))
    elif kind == "reference":
        place, seconds = int(rest.pop("pass")), float(rest.pop("seconds"))
        found.references.append((place, StepWork(**rest), seconds))
    elif kind == "load":
        found.loads.append((float(rest["seconds"]), float(rest["computed"]), float(rest["paused"])))
    elif kind == "probe":
        found.reads.append(float(rest["read"]))
        found.gemms.append(float(rest["gemm"]))
    elif kind == "cell":
        found.cells.append(rest["calls"])
    elif kind == "progress":
        progress(int(rest["done"]), int(rest["of"]))


def calibrate(
    flags: Sequence[str], *, seconds: float, own_clock: bool, progress: Progress = lambda done, of: None
) -> Profile:
    """Calibrate an engine with these flags within `seconds`. Raises PlanRefused."""
    if not 5 <= seconds <= MOST_SECONDS:
        raise PlanRefused(8, f"a calibration of {seconds:g} s: between 5 and {MOST_SECONDS:g}")
    most = 20 * seconds if own_clock else 2 * seconds  # of the wall: on a busy machine own seconds take long
    found = take(lines_of([*flags, "--seconds", f"{seconds:g}"], seconds=most), progress)
    return profile_of(found, own_clock=own_clock, made_at=datetime.now(UTC), commit=current_commit())


def profile_of(found: Measured, *, own_clock: bool, made_at: datetime, commit: str) -> Profile:
    """Fit what was measured. Raises PlanRefused where too little was, or the fit is no good."""
    if not found.about or not found.reads:
        raise PlanRefused(8, "the engine's process told nothing of its machine")
    fitted = fit(found.works, found.seconds, found.passes)
    idle = [took for took, computed, _ in found.loads if computed == 0 and took > 0]
    if not idle:
        raise PlanRefused(8, "no cold load was measured on the idle replica: give it more time")
    profile = Profile(
        made_at=made_at.isoformat(timespec="seconds"),
        commit=commit,
        own_clock=own_clock,
        machine=msgspec.convert(found.about["machine"], Machine),
        model=msgspec.convert(found.about["model"], Model),
        replica=msgspec.convert(found.about["replica"], Replica),
        coefficients=dict(fitted.model.coefficients),
        shape=fitted.model.shape,
        residuals=fitted.model.residuals,
        load_seconds=tuple(sorted(idle)[:LOADS_KEPT]),
        load_speed=load_speed(found.loads, statistics.median(idle)),
        probe_read=statistics.median(found.reads),
        probe_gemm=statistics.median(found.gemms),
        quality=Quality(steps=len(found.works), median=fitted.median, p90=fitted.p90, drift=fitted.drift),
    )
    check(profile, "the calibration")
    return profile


def load_speed(loads: Sequence[tuple[float, float, float]], idle: float) -> float:
    """Return how fast loads go on while steps compute, as a share of their speed on an idle replica (0 to 1).

    A load of `idle` seconds of work that took `seconds`, of which steps computed `computed` and left it alone for the
    rest, did idle − (seconds − computed) of it beside them.
    """
    beside = [(idle - (took - computed)) / computed for took, computed, _ in loads if computed > 0]
    return min(1.0, max(0.0, statistics.median(beside))) if beside else 1.0


def step(profile: Profile, warnings: tuple[str, ...] = ()) -> Step:
    """Return step 8 as it is printed."""
    quality, how = profile.quality, "steps that the fit did not see"
    counted = f"{quality.steps} steps"
    if profile.over_http:
        how, counted = "figures of cells that the fit did not see", f"{quality.steps} streamed tokens"
    shown = {name: f"{value:.3g} s" for name, value in profile.coefficients.items() if name not in SHARES}
    return Step(
        8,
        "Calibration",
        {"machine": profile.machine.gpu or profile.machine.cpu, "model": profile.model.name} | shown,
        "log least squares, soft L1, weak prior"
        + (", of simulated against measured figures" if profile.over_http else ""),
        f"{counted}; {100 * quality.median:.1f} % off in the median on {how}, 90 % of them below "
        f"{100 * quality.p90:.0f} %; the machine drifted by {100 * quality.drift:.0f} % between passes",
        quality.median,
        "share",
        Source.TRANSFERRED if profile.transferred else Source.MEASURED,
        warnings,
    )
