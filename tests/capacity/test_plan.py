"""A plan from end to end, on a profile that needs no machine: fleet, steps, money, words."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from capacity.catalogue import Accelerator, Price, PriceList
from capacity.errors import PlanRefused
from capacity.operating import Effort
from capacity.plan import Inputs, plan
from capacity.report import document, markdown
from capacity.terms import Terms
from capacity.usage import read_usage
from capacity.workload import Promise
from tests.capacity.conftest import Planned
from tests.capacity.plan_files import FINGERPRINT, usage, write_usage
from tests.capacity.profiles import profile

TODAY = datetime.date(2026, 11, 10)
QUICK = Effort(seeds=2, requests=60)  # few: what is tested is not how sure it is


def card(name: str, memory: float = 0.3e9, link: float | None = None) -> Accelerator:
    return Accelerator(name, memory, 0.3e12, 121e12, None, link, 72, "a data sheet", TODAY)


def inputs(folder: Path, **changes: object) -> Inputs:
    fields: dict[str, object] = {
        "usage": read_usage(write_usage(folder, usage())),
        "profiles": {FINGERPRINT: {"this machine": profile()}},
        "catalogue": {"card": card("card")},
        "prices": PriceList(
            "USD", (Price("own", "this machine", 1, 150_000, False, "", None, "an invented figure", TODAY),)
        ),
        "terms": Terms(promises={"standard": Promise(ttft=2.0, tpot=0.2)}, alpha=0.9, weeks=1, workspace_gb=0.01),
        "today": TODAY,
        "effort": QUICK,
    }
    return Inputs(**(fields | changes))  # type: ignore[arg-type]


def test_every_step_is_there_with_its_source(planned: Planned) -> None:
    found, steps = planned.document, planned.document["steps"]
    assert [step["number"] for step in steps] == list(range(1, 14))
    assert all(step["source"] in ("measured", "simulated", "transferred", "catalogue") for step in steps)
    assert all(step["result"] and step["formula"] and step["unit"] for step in steps)
    assert found["source"] == "simulated" and found["check_by"] == "2026-11-17"


def test_fleet_bears_the_demand_and_keeps_a_spare(planned: Planned) -> None:
    found = planned.document
    (words,) = [one for one in found["summary"] if one.startswith("small:")]
    replicas = int(re.findall(r"small: (\d+) replicas", words)[0])
    targets = found["targets"]["pools"]["small"]
    most = max(found["promised"][0]["high"]) / 3600 * 1.05
    assert replicas >= 2 and targets["k"] == 1
    known = max(int(count) for count in targets["mu"] if int(count) <= replicas)
    assert replicas * targets["mu"][str(known)] / known >= most
    assert 0 < targets["ceiling"]["1"] <= 1


def test_pictures_and_page(planned: Planned) -> None:
    figures = planned.document["figures"]
    assert len(figures) == 6
    for figure in figures:
        ElementTree.fromstring(figure["svg"])
        assert figure["rows"] and all(len(row) == len(figure["head"]) for row in figure["rows"])
    page = markdown(planned.document)
    assert page.startswith("# Plan of the fleet, 2026-11-10") and "### 13. Money" in page and "nan" not in page


def test_untouched_accelerator_old_price_and_short_history_are_said_in_words(tmp_path: Path) -> None:
    one_day = read_usage(write_usage(tmp_path, usage(weeks=1 / 7, calls=2000.0)))
    offers = PriceList("USD", (Price("rented", "card", 1, 800_000, False, "", None, "an offer", TODAY),))
    made = plan(inputs(tmp_path, usage=one_day, prices=offers, today=TODAY + datetime.timedelta(days=40)))
    assert document(made)["source"] == "transferred"
    assert any("was never run" in words and "factor of 1.3" in words for words in made.warnings)
    assert made.bases[0].chosen.factor == 1.3 and made.cost_low <= made.fleet.cost
    assert made.cost_high is None or made.cost_high >= made.fleet.cost
    assert any("40 days old (an offer)" in words for words in made.warnings)
    assert any("1.0 days" in words for words in made.warnings)
    assert "40 days old" in markdown(document(made))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"terms": Terms(promises={"batch": Promise(ttft=2.0, tpot=0.2)})},
            "step 2: small is asked in the class standard",
        ),
        (
            {"terms": Terms(promises={"standard": Promise(ttft=1e-4, tpot=0.2)})},
            "step 10: no accelerator on offer serves small within its promise",
        ),
        (
            {"profiles": {}, "prices": PriceList("USD", (Price("c", "card", 1, 1, False, "", None, "s", TODAY),))},
            "no profile",
        ),
        ({"prices": PriceList("USD", (Price("x", "unknown", 1, 1, False, "", None, "s", TODAY),))}, "in no catalogue"),
        (
            {
                "catalogue": {"card": card("card", memory=0.1e9)},
                "prices": PriceList("USD", (Price("c", "card", 1, 1, False, "", None, "s", TODAY),)),
                "terms": Terms(promises={"standard": Promise(ttft=2.0, tpot=0.2)}, workspace_gb=0.01),
            },
            "GB are missing.*no NVLink in the catalogue",
        ),
    ],
)
def test_refusals_say_which_step_and_why(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(PlanRefused, match=words):
        plan(inputs(tmp_path, **changes))


def test_no_calls_no_plan(tmp_path: Path) -> None:
    data = usage(weeks=2)
    data["bases"][FINGERPRINT]["classes"] = {}
    with pytest.raises(PlanRefused, match="step 1: the usage has no calls"):
        plan(inputs(tmp_path, usage=read_usage(write_usage(tmp_path, data))))
