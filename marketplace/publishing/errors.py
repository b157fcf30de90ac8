"""Refusals of this package, beside the general ones of `accounts.errors`."""

from __future__ import annotations

from marketplace.accounts.errors import Conflict, Refusal
from marketplace.publishing.models import Review
from marketplace.publishing.policies import sentences


class RefusedByReview(Conflict):
    """The platform keeps this from sale; the creator may appeal once."""

    code = "refused_by_review"

    def __init__(self, review: Review) -> None:
        """Say why, and what the creator can do."""
        why = review.decision or " ".join(sentences(review))
        appeal = (
            "The appeal was decided; push a new version."
            if review.appealed_at
            else f"If that is wrong, appeal: a person answers. The review is {review.pk}."
        )
        super().__init__(f"This may not be for sale: {why} {appeal}")
        self.review = review


class TooManyReports(Refusal):
    """An organization reports more models in a day than anybody reads."""

    code = "too_many_reports"
    status = 429
