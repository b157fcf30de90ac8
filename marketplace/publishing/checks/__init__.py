"""The automatic checks: pure functions of values. Each finding says in a sentence why a person must look."""

from marketplace.publishing.checks.cards import card_findings
from marketplace.publishing.checks.findings import COPY, Finding
from marketplace.publishing.checks.lineage import lineage_findings
from marketplace.publishing.checks.names import Name, name_findings
from marketplace.publishing.checks.quality import Score, example_findings, price_findings, score_findings

__all__ = [
    "COPY",
    "Finding",
    "Name",
    "Score",
    "card_findings",
    "example_findings",
    "lineage_findings",
    "name_findings",
    "price_findings",
    "score_findings",
]
