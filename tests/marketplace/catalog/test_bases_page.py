"""The examples of docs/bases.md work, in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from typer.testing import CliRunner

from marketplace.catalog.models import BaseModel, Clearance
from marketplace.command.main import app
from marketplace.vault.models import EnrolledReplica
from tests.marketplace.api.client import Api
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.catalog.test_base_lines import folder

pytestmark = pytest.mark.django_db
PAGE = (Path(__file__).parents[3] / "docs" / "bases.md").read_text()


class Client:
    """The part of `httpx.Client` that the page uses."""

    def __init__(self, api: Api) -> None:
        self.get, self._api = api.get, api

    def put(self, path: str, json: Any) -> Any:
        answer = self._api.put(path, json)
        assert answer.status_code == 200, answer.content
        return answer


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").mkdir()
    folder(tmp_path / "models", "tiny")
    folder(tmp_path / "models", "tiny-gptq", b"4", quantization_config={"quant_method": "gptq", "bits": 4})
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ python manage.py (.*)$", PAGE, re.MULTILINE)
    admin = re.findall(r"^\$ intarsia-admin (.*)$", PAGE, re.MULTILINE)
    assert len(admin) == 5
    assert len(commands) == 1
    for command in admin:
        assert CliRunner().invoke(app, shlex.split(command)).exit_code == 0, command
    for command in commands:
        call_command(*shlex.split(command))
    assert set(BaseModel.objects.values_list("name", "line__name", "is_reference")) == {
        ("tiny", "tiny", True),
        ("tiny-gptq", "tiny", False),
        ("tiny-int8", "tiny", False),
    }
    assert EnrolledReplica.objects.get().base_model.name == "tiny-gptq"
    version = make_version(make_model(make_organization("acme")))
    Clearance.objects.create(version=version, checkpoint=BaseModel.objects.get(name="tiny-gptq"))
    names = {"api": Client(Api.of(version.model.organization, "publish")), "version": version.pk}
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/bases.md", "exec"), names)
    assert capsys.readouterr().out.endswith("1 tiny-gptq False None None None\nTrue\n")
    assert Clearance.objects.get().leave == ""
