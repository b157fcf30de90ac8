"""Words of the commands about a version that a person looks at."""

from __future__ import annotations

from creator_cli.output import Output
from creator_cli.records import Version
from creator_cli.reviews import explain


def state_text(state: str) -> str:
    """Return a state in words."""
    return state.replace("_", " ")


def say_review(version: Version, out: Output) -> None:
    """Say why a version waits, until when, and what to do meanwhile; nothing for one that does not."""
    if version.state == "in_review" and version.review is not None:
        for line in explain(version.model, version.number, version.review):
            out.say(line)


def review_facts(version: Version) -> list[tuple[str, object]]:
    """Return what `status` shows of the version's review."""
    review = version.review
    if review is None:
        return []
    if review.state == "open":
        return [
            ("in review", " ".join(review.reasons)),
            ("answer by", f"{review.due_at:%a %d %b %Y, %H:%M} UTC"),
        ]
    if review.state == "refused" and version.state != "published":
        return [("refused", review.decision), ("appeal", "was decided" if review.appealed else "intarsia appeal")]
    return []
