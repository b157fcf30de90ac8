"""All pairs of factor levels in few cases, and always the same cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

Case = dict[str, object]
Pair = tuple[str, object, str, object]


def pairwise(
    factors: Mapping[str, Sequence[object]], allowed: Callable[[Case], bool] = lambda case: True
) -> list[Case]:
    """Cases in which every two levels of different factors that may occur together do, in at least one case.

    `allowed` judges cases, also partial ones (a missing factor is not decided yet). Greedy (as AETG, Cohen et al.,
    doi 10.1109/32.605761): each case starts from the first uncovered pair and takes, factor by factor, the level that
    covers most. Pairs that fit in no allowed case are left out.
    """
    names = list(factors)
    open_pairs: dict[Pair, None] = {
        (a, i, b, j): None
        for a, b in itertools.combinations(names, 2)
        for i in factors[a]
        for j in factors[b]
        if allowed({a: i, b: j})
    }
    cases: list[Case] = []
    while open_pairs:
        a, i, b, j = next(iter(open_pairs))
        del open_pairs[(a, i, b, j)]
        case: Case = {a: i, b: j}
        for name in names:
            if name not in case:
                levels = [level for level in factors[name] if allowed({**case, name: level})]
                if not levels:
                    break
                case[name] = max(levels, key=lambda level: _covered({**case, name: level}, name, names, open_pairs))
        else:
            for first, second in itertools.combinations(names, 2):
                open_pairs.pop((first, case[first], second, case[second]), None)
            cases.append({name: case[name] for name in names})
    return cases


def _covered(case: Case, name: str, names: Sequence[str], open_pairs: Mapping[Pair, None]) -> int:
    """How many uncovered pairs of `name` with the other decided factors the case covers."""
    count = 0
    for other in case:
        if other != name:
            first, second = sorted((name, other), key=names.index)
            count += (first, case[first], second, case[second]) in open_pairs
    return count
