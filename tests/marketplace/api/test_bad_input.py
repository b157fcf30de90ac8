"""Nonsense gets a clear refusal in the one envelope, and never an error page."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import ApiKey
from marketplace.api.body_limit import BodyLimit
from marketplace.api.parsers import MAX_JSON_SIZE
from marketplace.catalog.models import Model
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_base, make_model, make_organization

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> Api:
    make_base()
    return Api.of(make_organization("acme"))


def raw(api: Api, body: bytes, content_type: str = "application/json", path: str = "models"):
    return api.client.post(f"/api/v1/{path}", data=body, content_type=content_type, headers=api.headers)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b'{"slug": NaN}', b"\0"],
)
def test_nonsense_json_is_refused(api, body) -> None:
    assert error_of(raw(api, body), 400)["message"]
    assert Model.objects.count() == 0


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_only_json_is_read(api, content_type) -> None:
    error_of(raw(api, b'{"slug": "x", "title": "x"}', content_type), 415)


def test_a_huge_body_is_refused_before_it_is_parsed(api) -> None:
    response = raw(api, b'{"slug": "x", "title": "' + b"x" * MAX_JSON_SIZE + b'"}')
    assert error_of(response, 413)["code"] == "body_too_large"
    assert response["Connection"] == "close"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slug", "Upper"),
        ("slug", ""),
        ("slug", "a" * 41),
        ("slug", "trailing-"),
        ("slug", "new\nx"),
        ("slug", {"a": 1}),
        ("title", None),
        ("title", "x" * 121),
        ("title", "nul\x00"),
        ("title", "\ud800"),
        ("summary", "x" * 281),
        ("card_markdown", "x" * 100_001),
        ("tags", "finance"),
        ("tags", ["x"] * 11),
        ("tags", ["x" * 31]),
        ("tags", ["nul\x00"]),
        ("visibility", "secret"),
        ("base", "no such base"),
        ("example_messages.0.role", [{"role": "tool", "content": "x"}]),
        ("example_messages.0.content", [{"role": "user", "content": "x" * 4001}]),
        ("example_messages.0.content", [{"role": "user", "content": "nul\x00"}]),
        ("example_messages", [{"role": "user", "content": "x"}] * 9),
    ],
)
def test_a_bad_field_is_named(api, field, value) -> None:
    body = {"slug": "new", "title": "New", field.split(".")[0]: value}
    error = error_of(api.post("models", body), 400)
    assert error["field"] == field or error["field"].startswith(field)
    assert Model.objects.count() == 0


@pytest.mark.parametrize(
    "path",
    [
        "models?q=%00",
        "models?industry=%00",
        "models?base=%00",
        "models?cursor=nonsense",
        "models?mine=perhaps",
        "models?q=" + "x" * 201,
        "usage?since=yesterday",
        "usage?key=x",
        "usage/summary?group_by=colour",
        "earnings?until=x",
        "statements?month=2026-13",
        "statements?month=yesterday",
        "statements/lines?account=gold",
        "statements/lines?after=-1",
        "statements/lines?limit=1001",
        "models/a/b/c/d",
        "versions/not-a-uuid",
        "models/UPPER/x",
        "nothing",
        "",
        "models/%00/x",
        "keys/" + "9" * 5000,
        "wallet/",
    ],
)
def test_a_bad_address_is_refused(api, path) -> None:
    response = api.get(path)
    assert response.status_code in (400, 404)
    error_of(response, response.status_code)


def test_odd_searches_find_nothing_and_break_nothing(api) -> None:
    for q in ("'", '"', "a & | !", "(((", "%", "\\", "-", "🦊", "a:*", "or or or"):
        assert api.get("models?" + __import__("urllib.parse").parse.urlencode({"q": q})).json()["results"] == []


@pytest.mark.parametrize(
    "price",
    [
        {"input_micro_usd_per_mtok": -1},
        {"input_micro_usd_per_mtok": 10**10 + 1},
        {"input_micro_usd_per_mtok": 1.5},
        {"input_micro_usd_per_mtok": "free"},
        {"input_micro_usd_per_mtok": 10**40},
        {"cached_input_micro_usd_per_mtok": 11},
        {"per_prediction_nano_usd": 10**11 + 1},
        {"output_micro_usd_per_mtok": None},
    ],
)
def test_a_bad_price_is_refused(api, price) -> None:
    model = make_model(make_organization("seller"))
    body = {"input_micro_usd_per_mtok": 10, "output_micro_usd_per_mtok": 10, **price}
    error = error_of(Api.of(model.organization).post("models/seller/triage/prices", body), 400)
    assert error["field"] == next(iter(price))
    assert not model.prices.exists()


@pytest.mark.parametrize("key", ["", "AAAA", "A" * 44, "!" * 43, "é" * 43, None, 7])
def test_a_bad_signing_key_is_refused(api, key) -> None:
    assert error_of(api.post("organizations/acme/signing-keys", {"public_key": key}), 400)["field"] == "public_key"


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": "predict"},
        {"name": "", "scopes": ["predict"]},
        {"name": "x" * 101, "scopes": ["predict"]},
        {"name": "x", "scopes": ["predict"], "expires_at": "2001-01-01T00:00:00Z"},
        {"name": "x", "scopes": ["predict"], "monthly_limit_nano_usd": -1},
    ],
)
def test_a_bad_api_key_request_is_refused(api, body) -> None:
    error_of(api.post("keys", body), 400)
    assert ApiKey.objects.count() == 1


def test_every_answer_names_the_request_and_is_not_cached(api) -> None:
    for response in (api.get("me"), api.get("models"), api.get("nothing"), Api().get("me"), api.call("OPTIONS", "me")):
        assert len(response["X-Request-Id"]) == 36
        assert "no-store" in response["Cache-Control"]
    assert api.get("me", **{"X-Request-Id": "client-chosen-1"})["X-Request-Id"] == "client-chosen-1"
    for bad in ("short", "x" * 65, "new\tline-xxxxxx", "ünïcödé-12345"):
        answer = api.get("me", **{"X-Request-Id": bad.encode().decode("latin1")})
        assert len(answer["X-Request-Id"]) == 36


def test_an_unforeseen_error_is_told_without_detail(api, monkeypatch, caplog) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("billing.selectors.wallet", broken)
    response = api.get("wallet")
    assert error_of(response, 500)["code"] == "internal_error"
    assert b"secret" not in response.content
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("announced", [True, False])
async def test_the_body_limit_stops_a_body_announced_or_not(announced) -> None:
    reached_app: list[int] = []

    async def app(scope, receive, send) -> None:
        while (message := await receive())["type"] == "http.request":
            reached_app.append(len(message["body"]))
            if not message.get("more_body"):
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return

    async def serve(sizes: list[int]) -> list[int]:
        reached_app.clear()
        chunks = [{"type": "http.request", "body": b"x" * n, "more_body": True} for n in sizes]
        chunks[-1]["more_body"] = False
        sent: list[int] = []

        async def receive():
            return chunks.pop(0)

        async def send(message) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        headers = [(b"content-length", str(sum(sizes)).encode())] if announced else []
        await BodyLimit(app, limit=100)({"type": "http", "path": "/api/v1/models", "headers": headers}, receive, send)
        return sent

    assert await serve([60, 40]) == [200]
    assert await serve([60, 41]) == [413]
    assert reached_app == ([] if announced else [60])


@pytest.mark.parametrize("cursor", ["%ff", "nonsense", "cD1ub25lc3Vjaw==", "cD0lMDA=", "bz0tMQ==", "\u00e9"])
def test_a_cursor_that_nobody_handed_out_is_refused(api, cursor) -> None:
    assert error_of(api.get(f"keys?cursor={cursor}"), 400)["field"] == "cursor"


@pytest.mark.parametrize("limit", ["0", "-1", "", "many", "1.5", "true", "\u0663"])
def test_a_limit_is_a_whole_number_from_one_on(api, limit) -> None:
    assert error_of(api.get(f"keys?limit={limit}"), 400)["field"] == "limit"
    assert api.get(f"keys?limit={'9' * 5_000}").status_code == 200, "a large one is cut to 200"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("keys", {"name": 7, "scopes": ["predict"]}, "name"),
        ("keys", {"name": "x", "scopes": [7]}, "scopes.0"),
        ("keys", {"name": "x", "scopes": ["predict"], "monthly_limit_nano_usd": "7"}, "monthly_limit_nano_usd"),
        ("keys", {"name": "x", "scopes": ["predict"], "monthly_limit_nano_usd": True}, "monthly_limit_nano_usd"),
        ("models", {"slug": "new", "title": "New", "gated": 0}, "gated"),
        ("models", {"slug": "new", "title": "New", "example_messages": [{"role": "user", "content": 1}]}, "example_m"),
    ],
)
def test_a_value_of_another_type_is_refused_not_turned_into_one(api, path, body, field) -> None:
    error = error_of(api.post(path, body), 400)
    assert error["field"].startswith(field) and error["message"].startswith("must be ")
