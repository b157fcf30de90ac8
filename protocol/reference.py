"""What a replica reports of PEFT's answers, and how many of their tokens it must give too."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import Answer

REFERENCE_KEY: Final = "peft"  # of a verification's report
# The share of PEFT's tokens that a replica gives too, each after PEFT's own tokens before it. Rounding to another dtype
# moves a choice between two tokens that are nearly as likely, no more; weights in 8 bits move more of them.
LEAST_AGREED: Final = 0.95
LEAST_AGREED_IN_8_BITS: Final = 0.90

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


class ReferenceCounts(Answer, frozen=True):
    """The replica's answers beside PEFT's and beside the base's: counts alone, because prompts and answers are sealed.

    rows: prompts; same: those whose whole answer is PEFT's
    tokens: of PEFT's answers; agreed: those that the replica gives too; base_agreed: that the bare base gives too
    peft, served: the dtype of the base's weights there and here
    """

    rows: _Count
    same: _Count
    tokens: _Count
    agreed: _Count
    base_agreed: _Count
    peft: Annotated[str, msgspec.Meta(max_length=16)]
    served: Annotated[str, msgspec.Meta(max_length=16)]

    @property
    def least(self) -> float:
        """Return the share of tokens that must agree."""
        return LEAST_AGREED_IN_8_BITS if self.served in ("int8", "uint8") else LEAST_AGREED

    @property
    def holds(self) -> bool:
        """Return whether enough tokens agree."""
        return self.agreed >= self.least * self.tokens


def read_reference_counts(value: object) -> ReferenceCounts:
    """Check what a replica reported. Raises ProtocolError."""
    try:
        found = msgspec.convert(value, ReferenceCounts)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the reported answers of PEFT: {error}") from None
    if not (found.same <= found.rows and max(found.agreed, found.base_agreed) <= found.tokens and found.rows):
        raise ProtocolError("the reported answers of PEFT: no part may be larger than its whole")
    return found
