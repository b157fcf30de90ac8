"""PEFT's answers beside a real engine's: counted token by token, refused where they are another adapter's."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolError
from protocol.messages import to_fields
from protocol.reference import ReferenceCounts, read_reference_counts
from sealed_weights import IntakeError, Reference, ReferenceAnswer
from serving.platform.reference import ReferenceRunner, require_agreement
from tests.serving.harness import running
from tests.serving.tiny import Tiny

PROMPTS = [tuple(range(first, first + 12)) for first in (10, 60, 110)]


def peft(tiny: Tiny, name: str | None) -> Reference:
    answers = (ReferenceAnswer(prompt, tuple(tiny.reference(name, list(prompt), 16))) for prompt in PROMPTS)
    return Reference("ab" * 32, "float32", tuple(answers))


async def test_the_replicas_tokens_are_counted_beside_pefts_and_the_bases(tiny: Tiny) -> None:
    async with running(tiny) as run:
        digest = run.digest("r4")
        assert digest is not None
        runner = ReferenceRunner(run.engine, 259, "float32")
        own = await runner.run(digest, peft(tiny, "r4"))
        assert own is not None and not own.unchanged
        assert (own.counts.rows, own.counts.same, own.counts.tokens, own.counts.agreed) == (3, 3, 48, 48)
        assert own.counts.base_agreed < 24, "the base is another model"
        require_agreement(own.counts)

        other = await runner.run(digest, peft(tiny, "r8-attention"))
        assert other is not None and other.counts.agreed < 40 and other.counts.same == 0
        with pytest.raises(IntakeError, match=r"must agree with PEFT on 95% of its tokens: it does on \d+ of 48"):
            require_agreement(other.counts)

        outside = Reference("ab" * 32, "float32", (ReferenceAnswer((1, 259), (2,)),))
        with pytest.raises(IntakeError, match="of which there are 259") as caught:
            await runner.run(digest, outside)
        assert caught.value.field == "reference.json answers[0]"
        await run.settled()


def test_weights_in_8_bits_may_differ_more_and_a_report_is_read_strictly() -> None:
    counts = ReferenceCounts(2, 1, 100, 92, 60, "bfloat16", "int8")
    assert counts.holds and not ReferenceCounts(2, 1, 100, 92, 60, "bfloat16", "bfloat16").holds
    assert read_reference_counts(to_fields(counts)) == counts
    for change in ({"same": 3}, {"agreed": 101}, {"rows": 0, "same": 0}, {"served": 1}):
        with pytest.raises(ProtocolError):
            read_reference_counts(to_fields(counts) | change)
