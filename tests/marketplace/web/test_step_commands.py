"""The creator's first steps name a base line where the platform has several."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import Membership
from marketplace.catalog import services
from marketplace.catalog.models import BaseModel
from marketplace.web.onboarding import checklist_of
from tests.marketplace.catalog.factories import make_model, make_organization

pytestmark = pytest.mark.django_db


def test_commands_name_the_models_base_line_or_the_oldest_where_there_are_several() -> None:
    organization = make_organization("acme")
    user = Membership.objects.get(organization=organization).user

    def example() -> str:
        found = checklist_of(organization=organization, user=user, site="https://x", wheel="w.whl", may_account=True)
        assert found is not None
        return next(line for step in found.steps for line in step.commands.splitlines() if "example" in line)

    services.register_base(name="first", fingerprint="11" * 32, config={}, context_length=64)
    assert example() == "intarsia example my-adapter"
    services.register_base(name="second", fingerprint="22" * 32, config={}, context_length=64, line="the second's")
    assert example() == "intarsia example my-adapter --base first"
    model = make_model(organization, slug="triage")
    model.base_model = BaseModel.objects.get(name="second")
    model.save(update_fields=["base_model"])
    assert example().startswith("intarsia example my-adapter --model acme/triage --base 'the second'")
