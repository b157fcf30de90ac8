"""Throughput of a closed loop as a formula: a steady batch whose steps take what the step model says.

Schedulers of other engines are not ours, so nothing is simulated. While a batch of b writes its outputs once, each of
its prompts is computed in one step, beside the tokens of the others; all other steps are tokens alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from benchmarks.capacity.silicon import WEIGHT_BYTES, Configuration, Dense, Point
from capacity.catalogue import Accelerator
from capacity.kinds import PRODUCT_SHARE, READ_SHARE
from capacity.steps import PRIOR, StepModel
from serving.simulation.work import StepWork

# Rules of thumb of the design (with READ_SHARE and PRODUCT_SHARE), and the shares of memory that a plan's terms have.
_ALL_REDUCE, _STEP, _DECODE_ROW = 10e-6, 2e-3, 20e-6
_MEMORY_SHARE, _WORKSPACE = 0.92, 2e9
_ACTIVATION_BYTES = 2
_NONE = 1e-15  # seconds of what a base without adapters does not do
# Coefficients that a fit moves together: five points do not tell a read of the head from one of the layers.
_GROUPS: Sequence[tuple[str, ...]] = (
    ("weights", "head"),
    ("row", "sample"),
    ("context",),
    ("pair",),
    ("step",),
    ("decode_row",),
)
_WIDTH = 1.0  # standard deviation of a group's prior around the catalogue, in log units
_SOFT = 0.05  # as in capacity.steps: a residual beyond this counts by its absolute value alone


def catalogue_model(configuration: Configuration, card: Accelerator) -> StepModel:
    """Return the step model of a configuration that nobody has run, from the catalogue alone."""
    dense, cards = configuration.dense, configuration.cards
    shape, layers = dense.shape, dense.shape.parameters - 2 * dense.head
    read = card.bandwidth * READ_SHARE * cards
    product = _flops(configuration, card) * PRODUCT_SHARE * cards
    full = card.bf16 * PRODUCT_SHARE * cards
    moved = meet = 0.0
    if cards > 1:
        if card.link is None:
            raise ValueError(f"{card.name} has no link in the catalogue, and {cards} cards meet in each layer")
        sums = 2 * shape.layers  # all-reduces
        moved = sums * shape.hidden * _ACTIVATION_BYTES * 2 * (cards - 1) / cards / card.link
        meet = sums * _ALL_REDUCE
    seconds = {
        "weights": layers * WEIGHT_BYTES[configuration.precision] / read,
        "row": 2 * layers / product + moved,
        "head": dense.head * 2 / read,
        "sample": 2 * dense.head / full,
        "context": kv_token(configuration) / read,
        "pair": 4 * shape.layers * dense.query_width / full,
        "step": _STEP + meet,
        "decode_row": _DECODE_ROW,
    }
    return StepModel(dict.fromkeys(PRIOR, _NONE) | seconds)


def kv_token(configuration: Configuration) -> int:
    """Return the bytes of a token's KV. TensorRT-LLM keeps 8 bits beside quantized weights, as its checkpoints say."""
    narrow = configuration.engine == "TensorRT-LLM" and WEIGHT_BYTES[configuration.precision] < 2
    return configuration.dense.shape.kv_token(1 if narrow else 2)


def kv_room(configuration: Configuration, card: Accelerator) -> float:
    """Return how many tokens of KV the memory holds; at most 0 where the weights fill it."""
    dense, cards = configuration.dense, configuration.cards
    weights = _weight_bytes(dense, WEIGHT_BYTES[configuration.precision])
    return (cards * (card.memory * _MEMORY_SHARE - _WORKSPACE) - weights) / kv_token(configuration)


def throughput(model: StepModel, points: Sequence[Point], room: float) -> np.ndarray:
    """Return output tokens per second, float64 [points]. room: tokens of KV; callers without room wait."""
    with_prompt, without, steps = [], [], []
    for point in points:
        mean = point.prompt + point.output / 2
        seats = min(point.batch, max(1, int(room / mean)))
        count = min(seats, point.output)  # of steps with a prompt, or more than one
        prompts = seats / count
        context = round(seats * mean)
        rows = round(prompts * point.prompt)
        pairs = prompts * point.prompt**2 / 2
        with_prompt.append(StepWork(rows + seats, seats, seats, context, pairs, 0, 0, 0))
        without.append(StepWork(seats, seats, seats, context, 0, 0, 0, 0))
        steps.append((count, point.output - count, seats * point.output))
    first, others, tokens = np.array(steps, np.float64).T
    seconds = first * model.predict(with_prompt) + others * model.predict(without)
    return np.asarray(tokens / seconds, np.float64)


def fitted(prior: StepModel, points: Sequence[Point], room: float) -> StepModel:
    """Return the model whose throughput is nearest to the points', in logs, with a weak prior at the catalogue."""
    measured = np.log([point.throughput for point in points])

    def residuals(logs: np.ndarray) -> np.ndarray:
        off = np.log(throughput(prior.scaled(_factors(logs)), points, room)) - measured
        return np.concatenate([off, logs / _WIDTH * _SOFT])

    solved = least_squares(residuals, np.zeros(len(_GROUPS)), loss="soft_l1", f_scale=_SOFT, max_nfev=100)
    return prior.scaled(_factors(solved.x))


def _factors(logs: np.ndarray) -> Mapping[str, float]:
    return {name: float(np.exp(log)) for names, log in zip(_GROUPS, logs, strict=True) for name in names}


def _flops(configuration: Configuration, card: Accelerator) -> float:
    if WEIGHT_BYTES[configuration.precision] == 2:
        return card.bf16
    if card.fp8 is None:
        raise ValueError(f"{card.name} has no FP8 in the catalogue")
    # Data sheets of Blackwell have twice as many dense FLOP/s in FP4 as in FP8; the catalogue has no column for them.
    return card.fp8 * (2 if configuration.precision == "nvfp4" else 1)


def _weight_bytes(dense: Dense, each: float) -> float:
    return (dense.shape.parameters - 2 * dense.head) * each + 2 * dense.head * 2
