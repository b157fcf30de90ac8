"""MSTL of statsmodels, the forecast that ours is held against; an optional dependency of this benchmark alone.

Bandara, Hyndman, Bergmeir: MSTL, a seasonal-trend decomposition for series with multiple seasonal patterns (2021).
"""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np

from capacity.forecast import WEEK, Hours

_PERIODS = (24, WEEK)
_OFFSET = 0.01  # of the mean: an hour without calls has no logarithm


def installed() -> bool:
    """Tell whether statsmodels is there."""
    return importlib.util.find_spec("statsmodels") is not None


def week_ahead(history: Hours, *, logs: bool) -> Hours:
    """Return the next 168 hours: the last cycle of a day and of a week, on a damped trend of what is left.

    history: [hours], at least two weeks, without gaps; logs: whether logarithms are decomposed, or the values
    """
    from statsmodels.tsa.holtwinters import ExponentialSmoothing
    from statsmodels.tsa.seasonal import MSTL

    offset = _OFFSET * float(history.mean())
    values = np.log(history + offset) if logs else history
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that stop at their limit of iterations
        seasons = np.asarray(MSTL(values, periods=_PERIODS).fit().seasonal)
        rest = ExponentialSmoothing(values - seasons.sum(axis=1), trend="add", damped_trend=True).fit()
        ahead = np.asarray(rest.forecast(WEEK))
    for column, period in enumerate(_PERIODS):
        ahead = ahead + np.tile(seasons[-period:, column], WEEK // period)
    return np.maximum(np.exp(ahead) - offset if logs else ahead, 0.0)
