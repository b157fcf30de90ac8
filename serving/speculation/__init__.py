"""Speculation: guesses of the tokens that come next, verified by the model in the same step. Imports no torch.

A draft changes no answer: rows are sampled in order, and no further than the first that differs from it.
"""

from serving.speculation.drafter import Drafter
from serving.speculation.offer import Offer, Source

__all__ = ["Drafter", "Offer", "Source"]
