"""The OpenAPI description of `/v1` against the gateway itself: every route is in it, and answers have its shapes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import spectacular_settings
from jsonschema import Draft202012Validator

from marketplace.api.predictions import OPERATIONS, prediction_components
from marketplace.api.schema import add_the_rest
from marketplace.gateway.app import OWN_THINGS, POSTED
from marketplace.gateway.background.routes import _ROUTES as BACKGROUND
from tests.marketplace.gateway.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")


def problems(name: str, answer: Any) -> list[str]:
    """Return where `answer` is not of the schema `name`."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": prediction_components()}}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(answer)]


async def test_every_route_is_described() -> None:
    described = {operation.path for operation in OPERATIONS}
    calls = {(re.sub(r"{[a-z_]+}", "{}", operation.path), operation.method) for operation in OPERATIONS}
    assert set(POSTED) <= described
    for path in OWN_THINGS:
        assert any(one.startswith(f"{path}/") for one in described)
    for (kind, shape), methods in BACKGROUND.items():
        end = {"": "", "one": "/{}", "quote": "/quote"}.get(shape, f"/{{}}/{shape}")
        for method in methods:
            assert (f"/v1/{kind}{end}", method.lower()) in calls, (kind, shape, method)
    schemas = prediction_components()
    for operation in OPERATIONS:
        assert operation.answer in schemas and (operation.body is None or operation.body in schemas), operation.id


async def test_no_schema_of_the_control_api_has_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    only_control = [hook for hook in spectacular_settings.POSTPROCESSING_HOOKS if hook is not add_the_rest]
    monkeypatch.setattr(spectacular_settings, "POSTPROCESSING_HOOKS", only_control)
    made = SchemaGenerator().get_schema(request=None, public=True)
    assert not set(made["components"]["schemas"]) & set(prediction_components())
    ids = [one["operationId"] for methods in made["paths"].values() for one in methods.values()]
    ids += [operation.id for operation in OPERATIONS]
    assert len(ids) == len(set(ids))


async def test_answers_and_refusals_have_the_described_shapes(world: World) -> None:
    answer = await (await world.http.post("/v1/chat/completions", json=world.body())).json()
    assert problems("ChatCompletion", answer) == []
    assert problems("ChatBody", world.body()) == []
    quote = await (await world.http.post("/v1/quote", json=world.body())).json()
    assert problems("PredictionQuote", quote) == []
    models = await (await world.http.get("/v1/models")).json()
    assert problems("CallableModels", models) == []
    one = await (await world.http.get("/v1/models/maker/thing")).json()
    assert problems("CallableModel", one) == []
    refusal = await (await world.http.post("/v1/chat/completions", json=world.body(n="many"))).json()
    assert problems("Refusal", refusal) == []
    thumb = {"prediction_id": answer["intarsia"]["prediction_id"], "thumb": "up"}
    given = await (await world.http.post("/v1/feedback", json=thumb)).json()
    assert problems("Feedback", given) == []
    assert problems("ChatCompletion", {**answer, "choices": "none"}), "the check checks"
