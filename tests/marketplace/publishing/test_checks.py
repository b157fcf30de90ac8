"""The automatic checks, each a pure function, and the working day."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
import pytest
from django.db import connection

from marketplace.accounts.names import fold
from marketplace.publishing.checks.cards import card_findings
from marketplace.publishing.checks.findings import Finding, not_accepted
from marketplace.publishing.checks.lineage import Known, lineage_findings
from marketplace.publishing.checks.names import Name, name_findings, similarity, trigrams
from marketplace.publishing.checks.quality import Score, example_findings, price_findings, score_findings
from marketplace.publishing.policies import Record, independent, reasons_for_review
from marketplace.publishing.working_days import due_after
from tests.marketplace.publishing.factories import draw_sketch

NOW = datetime(2026, 11, 26, tzinfo=UTC)
TEXTS = ["ledgerline transactions", "ledgerline transaction", "triage of tickets", "ticket triage", "a", "bank 2"]


@pytest.mark.django_db
def test_the_similarity_is_that_of_pg_trgm() -> None:
    with connection.cursor() as cursor:
        for one in TEXTS:
            for other in TEXTS:
                cursor.execute("SELECT extensions.similarity(%s, %s)", [one, other])
                first, second = trigrams(one), trigrams(other)
                assert len(first & second) / len(first | second) == pytest.approx(cursor.fetchone()[0], abs=1e-6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ledgerline", "Lеdgеrlіnе"),  # Cyrillic е and і
        ("Ledgerline", "LedgerIine"),  # a capital I
        ("Ledgerline", "l3dgerl1ne"),
        ("Ledgerline", "Lédgerlíne"),
        ("Ledgerline", "Ｌｅｄｇｅｒｌｉｎｅ"),
        ("Carepath Intake", "carepath-intake"),
        ("modern bank", "modem bank"),
    ],
)
def test_letters_that_look_alike_are_the_same(one: str, other: str) -> None:
    assert fold(one).replace("-", " ") == fold(other).replace("-", " ")
    assert similarity(one, other) == 1


def test_a_near_name_is_a_finding_that_names_the_other_and_a_different_one_is_none() -> None:
    others = [
        Name("ledgerline", "transactions", "Ledgerline Transactions"),
        Name("carepath", "intake", "Carepath Intake"),
    ]
    (finding,) = name_findings(Name("stranger", "money", "Ledgerline Transaction"), others)
    assert finding.subject == "ledgerline/transactions" and "title" in finding.message
    (finding,) = name_findings(Name("ledger1ine", "money", "Something of my own"), others)
    assert "organization" in finding.message
    assert name_findings(Name("stranger", "money", "Sorting of payments"), others) == []
    assert similarity("Triage v1", "Triage v2") < 0.8


def test_ten_thousand_names_are_compared_within_seconds_of_processor_time() -> None:
    others = [
        Name(f"organization-{n}", f"model-{n * 7919}", f"The model number {n} of {n * 31}") for n in range(10_000)
    ]
    began = time.process_time()
    assert name_findings(Name("newcomer", "parcels", "Parcels and letters"), others) == []
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "card",
    [
        "Hello <script>alert(1)</script>",
        "<img src=x onerror='steal()'>",
        "[open](javascript:alert(1))",
        "[https://intarsia.example/login](https://evil.example/login)",
        "[intarsia.example](http://evil.example)",
        "[sign in](https://intarsia.example@evil.example/)",
        "[docs](https://іntarsia.example/)",
        "[docs](https://xn--ntarsia-q9f.example/)",
        "[docs](https://intarsia-login.example/)",
        "Text before\n\n| a |\n|---|\n| [https://a.example](https://b.example) |",
    ],
)
def test_a_card_that_runs_something_or_pretends_is_a_finding(card: str) -> None:
    assert card_findings(card, own_host="intarsia.example"), card


def test_an_honest_card_is_none() -> None:
    card = """# Parcels
    Sorts parcels. See [our pages](https://parcels.example/docs), [parcels.example](https://www.parcels.example/) and
    [the platform](https://docs.intarsia.example/models). `<script>` in code, 5 < 7, on = off, and:

```html
<script>const shown = "as an example"</script>
```

<https://parcels.example>, mail [us](mailto:a@parcels.example), [below](#parcels).
"""
    assert card_findings(card, own_host="intarsia.example") == []
    for name in ("finance", "health", "telecom"):
        with open(f"examples/cards/{name}.md") as file:
            assert card_findings(file.read(), own_host="intarsia.example") == []


def test_only_answers_that_are_not_valid_are_a_finding() -> None:
    assert example_findings(None) == example_findings({"run": 3, "valid": 3, "equal": 0}) == []
    (finding,) = example_findings({"run": 3, "valid": 2, "equal": 2})
    assert "2 of the 3" in finding.message


def test_a_score_is_worse_only_beyond_chance_and_on_the_same_rows() -> None:
    old = Score(1, 1, 200, 190)
    assert len(score_findings(Score(2, 1, 200, 150), old)) == 1
    assert score_findings(Score(2, 1, 200, 185), old) == []
    assert score_findings(Score(2, 2, 200, 10), old) == []
    assert score_findings(None, old) == score_findings(old, None) == []


def test_a_cheap_copy_is_a_finding_until_a_person_has_accepted_that_price() -> None:
    assert price_findings(None) == price_findings(5 * 10**9) == []
    cheap = price_findings(52 * 10**6, rate=70)
    assert "$0.05" in cheap[0].message
    assert not_accepted(cheap, price_findings(60 * 10**6, rate=70)) == [], "calls turned out shorter"
    assert not_accepted(cheap, price_findings(52 * 10**6, rate=69)) == []
    assert not_accepted(cheap, price_findings(52 * 10**6, rate=71)) == cheap, "the price was lowered"


def _noised(values: bytes, share: float) -> bytes:
    drawn = np.frombuffer(values, np.int8).astype(np.float32)
    noise = np.random.default_rng(1).normal(size=drawn.size) * drawn.std() * share
    return np.clip(np.rint(drawn + noise), -127, 127).astype(np.int8).tobytes()


def test_a_copy_is_found_among_many_and_chance_finds_none() -> None:
    own = draw_sketch(1)  # the same each time: noise of 1.2 times the update looks like a copy once in twenty draws
    others = [Known(str(n), None, draw_sketch(2 + n), NOW) for n in range(2_000)]
    assert lineage_findings(own, others) == []
    (finding,) = lineage_findings(own, [*others, Known("it", "acme/triage@1", _noised(own, 0.3), NOW)])
    assert (finding.check, finding.subject) == ("copy", "it") and "acme/triage@1" in finding.message
    (finding,) = lineage_findings(own, [*others, Known("it", None, _noised(own, 1.2), NOW)])
    assert finding.check == "related" and "acme" not in finding.message
    nothing = bytes(256)
    assert lineage_findings(nothing, [Known("it", None, nothing, NOW)]) == [], (
        "adapters that change nothing are no copies"
    )


def test_a_copy_of_ones_own_earlier_version_accuses_nobody() -> None:
    own = draw_sketch()
    thief = Known("it", "thief/triage@1", _noised(own, 0.1), NOW)
    ours = Known("ours", None, _noised(own, 0.2), NOW - timedelta(days=1))
    assert lineage_findings(own, [thief])[0].check == "copy"
    assert lineage_findings(own, [thief], [ours]) == []
    later = replace(ours, made_at=NOW + timedelta(days=1))
    assert lineage_findings(own, [thief], [later])[0].check == "copy"


def test_one_group_of_modules_is_enough_for_a_copy() -> None:
    own, other = bytearray(draw_sketch()), draw_sketch()
    own[64:128] = other[64:128]
    assert lineage_findings(bytes(own), [Known("it", None, other, NOW)])[0].check == "copy"


def test_a_record_is_one_approved_model_and_no_standing_strike() -> None:
    finding = Finding("name", "It is near another.")
    assert reasons_for_review(Record(0, 0), []) == ["no_record"]
    assert reasons_for_review(Record(1, 0), []) == []
    assert reasons_for_review(Record(1, 0), [finding]) == ["finding"]
    assert reasons_for_review(Record(5, 1), [finding]) == ["strike", "finding"]
    assert reasons_for_review(Record(0, 0, is_platform=True), [finding]) == [], "its people are those who decide"


def test_organizations_that_share_members_report_once_and_the_creators_own_not_at_all() -> None:
    a, b, c, d, e = (UUID(int=n) for n in range(5))
    people = [frozenset({UUID(int=100 + n)}) for n in range(5)]
    assert independent(dict(zip((a, b, c), people, strict=False)), people[4]) == 3
    assert independent({a: people[0], b: people[0], c: people[1]}, people[4]) == 2
    assert independent({a: people[0], b: people[1], c: people[0] | people[1]}, people[4]) == 1
    assert independent({a: people[0], d: people[3], e: people[4] | people[3]}, people[4]) == 2
    assert independent({}, people[4]) == 0


@pytest.mark.parametrize(
    ("opened", "due"),
    [
        ("2026-11-26 10:00", "2026-11-27 10:00"),
        ("2026-11-27 15:00", "2026-11-30 15:00"),  # Friday to Monday
        ("2026-11-28 10:00", "2026-12-01 00:00"),  # Saturday: the day begins on Monday
        ("2026-11-29 23:59", "2026-12-01 00:00"),
        ("2026-11-27 00:00", "2026-11-30 00:00"),
    ],
)
def test_a_working_day_leaves_weekends_out(opened: str, due: str) -> None:
    start = datetime.fromisoformat(opened).replace(tzinfo=UTC)
    assert due_after(start) == datetime.fromisoformat(due).replace(tzinfo=UTC)
    assert due_after(start) - start >= timedelta(hours=24)
