"""Base lines and versions on checkpoints on the pages of staff, of the creator and of everybody."""

from __future__ import annotations

import pytest
from django.utils import timezone

from marketplace.catalog.models import BaseModel, Clearance
from marketplace.web.views.versions import LEAVES
from tests.marketplace.web.conftest import World
from tests.marketplace.web.test_version_pages import PAGE, PUBLIC, fresh, text_of

SMALLER = "ef" * 32


@pytest.fixture
def clearance(world: World) -> Clearance:
    fields = {"name": "tiny-int4", "precision": "INT4", "config": {}, "context_length": 64, "is_reference": False}
    line = world.model.base_model.line
    checkpoint = BaseModel.objects.create(line=line, fingerprint=SMALLER, **fields)
    figures = {"rows": 50, "correct": 40, "reference_correct": 45, "same_answers": 42, "measured_at": timezone.now()}
    return Clearance.objects.create(
        version=world.published, checkpoint=checkpoint, state="failed", reason="it loses too much", **figures
    )


def test_the_creators_word_is_taken_and_customers_see_where_it_is_served(world: World, clearance: Clearance) -> None:
    creator = fresh(world)
    shown = text_of(creator, f"{PAGE}/1")
    assert "tiny-int4" in shown and "not served" in shown and "80 %" in shown and "it loses too much" in shown
    assert "INT4" not in text_of(world.client(None), PUBLIC)
    for action, _, said in LEAVES:
        answer = creator.post(f"{PAGE}/1/leave/{action}", {"checkpoint": SMALLER})
        assert answer.status_code == 302 and answer["Location"] == f"{PAGE}/1"
        clearance.refresh_from_db()
        assert clearance.leave == said
        public = text_of(world.client(None), PUBLIC)
        assert ("INT4: 80 % right (reference 90 %), 84 % the same answers" in public) is (said == "given")
    for path, checkpoint in ((f"{PAGE}/1", "ab" * 32), (f"{PAGE}/2", SMALLER), (f"{PAGE}/1", "")):
        assert creator.post(f"{path}/leave/give", {"checkpoint": checkpoint}).status_code == 302
    assert creator.post(f"{PAGE}/77/leave/give", {"checkpoint": SMALLER}).status_code == 404
    clearance.refresh_from_db()
    assert clearance.leave == "" and Clearance.objects.count() == 1


def test_the_staffs_page_lists_lines_and_versions(world: World, clearance: Clearance) -> None:
    staff = world.client(world.staff)
    for query in ("", "?state=failed", "?state=made-up&page=9"):
        shown = text_of(staff, f"/platform/bases{query}")
        assert "transactions@1" in shown.replace("<wbr>", "") and "tiny-int4" in shown and SMALLER in shown
    assert "transactions@1" not in text_of(staff, "/platform/bases?state=passed").replace("<wbr>", "")
    again = f"/platform/clearances/{clearance.pk}/measure"
    assert staff.post(again).status_code == 302
    clearance.refresh_from_db()
    assert (clearance.state, clearance.rows) == ("waiting", None)
    Clearance.objects.update(state="measuring")
    assert "Nothing changed." in text_of_redirect(staff, again)


def text_of_redirect(client: object, path: str) -> str:
    return str(client.post(path, follow=True).content.decode())  # type: ignore[attr-defined]
