"""Speed-up over the best peer, point by point, one panel per type."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kernels.cpu import Measured
from benchmarks.kernels.grid import SHAPES
from benchmarks.kernels.report import LEAST_AT_ANY_POINT, aggregates

INSTALL = "no plot: matplotlib is missing (pip install -e '.[bench]')"


def draw(results: Sequence[Measured], path: Path) -> bool:
    """Write the plot; False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = aggregates(results)
    figure, panels = pyplot.subplots(1, len(found), figsize=(7 * len(found), 5), sharey=True, squeeze=False)
    for panel, one in zip(panels[0], found, strict=True):
        mine = [result for result in results if result.point.dtype == one.dtype]
        cells = sorted({(result.point.rows, result.point.distinct) for result in mine})
        for shape, marker in zip(SHAPES, "os^D", strict=True):
            at = [result for result in mine if result.point.shape == shape]
            panel.scatter(
                [cells.index((result.point.rows, result.point.distinct)) for result in at],
                [result.speedup for result in at],
                s=[12 + result.point.rank for result in at],
                marker=marker,
                alpha=0.6,
                label=str(shape),
            )
        panel.axhline(LEAST_AT_ANY_POINT, color="black", linewidth=0.8)
        panel.axhline(one.geometric_mean, color="black", linewidth=0.8, linestyle="--")
        panel.set_yscale("log")
        panel.set_xticks(range(len(cells)), [f"{rows}\n{distinct}" for rows, distinct in cells])
        panel.set_xlabel("tokens / distinct adapters (size of a mark: rank)")
        panel.set_title(f"{one.dtype}: geometric mean {one.geometric_mean:.1f}×")
        panel.legend()
    panels[0][0].set_ylabel("times faster than the best peer")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
