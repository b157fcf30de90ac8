"""The choice of a replica for each call: pure functions of values, without a clock and without I/O.

The gateway, the serving tier's fleet and the simulator share it.
"""

from routing.fleet import Fleet
from routing.homes import home_count, key_of
from routing.keys import KeySet
from routing.ranking import Call, Choice, Rule, rank
from routing.rates import Rates
from routing.views import View
from routing.waits import CLASS_TARGETS, wait_of_calls

__all__ = [
    "CLASS_TARGETS",
    "Call",
    "Choice",
    "Fleet",
    "KeySet",
    "Rates",
    "Rule",
    "View",
    "home_count",
    "key_of",
    "rank",
    "wait_of_calls",
]
