"""Personal data taken out of a body: each place, each value, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.guards.masking import Mask, Masked, Refused, Span, mask_body, texts_of
from marketplace.guards.policies import NO_POLICY, Policy, PolicyError, check_policy
from marketplace.guards.restoring import Restorer
from marketplace.guards.texts import Unmaskable

EMAIL = re.compile(r"[a-z\"]+@[a-z]+\.com|4111111111111111")
POLICY = Policy(masked=frozenset({"email", "card"}))


def spans(text: str) -> list[Span]:
    """The findings of a real finder."""
    return [(one.start(), one.end(), "email" if "@" in one.group() else "card") for one in EMAIL.finditer(text)]


def mask(body: dict[str, Any], policy: Policy = POLICY, **options: Any) -> Masked:
    findings: Mapping[str, list[Span]] = {text: spans(text) for text in texts_of(body)}
    return mask_body(body, findings, policy, pseudonym=lambda name: f"masked-{len(name)}", **options)


def chat(content: Any, **others: Any) -> dict[str, Any]:
    return {"model": "maker/thing", "messages": [{"role": "user", "content": content}], **others}


def test_a_value_has_one_placeholder_and_another_value_has_another() -> None:
    found = mask(chat("bob@x.com, ann@x.com and bob@x.com pay with 4111111111111111"))
    assert found.body["messages"][0]["content"] == "<EMAIL_1>, <EMAIL_2> and <EMAIL_1> pay with <CARD_1>"
    assert found.mask.values == {"<EMAIL_1>": "bob@x.com", "<EMAIL_2>": "ann@x.com", "<CARD_1>": "4111111111111111"}
    assert found.kinds == {"email", "card"}


def test_every_place_of_a_body_is_masked() -> None:
    secret = "bob@x.com"
    call = {"id": "c1", "type": "function", "function": {"name": "mail", "arguments": json.dumps({"to": [secret]})}}
    body = {
        "model": "maker/thing",
        "messages": [
            {"role": "system", "content": f"You know {secret}."},
            {"role": "user", "name": secret, "content": [{"type": "text", "text": f"Write to {secret}"}]},
            {"role": "assistant", "content": None, "reasoning_content": secret, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": json.dumps({secret: {"sent": [secret]}})},
        ],
        "prompt": [secret, f"{secret}!"],
        "input": secret,
        "suffix": secret,
        "stop": [secret],
        "user": secret,
        "safety_identifier": secret,
        "metadata": {"for": secret},
        "tools": [{"type": "function", "function": {"name": "mail", "description": f"to {secret}"}}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"enum": [secret], "properties": {secret: {}}}},
        },
        "guided_regex": secret,
        "something_new": {"deep": [[{"er": secret}]]},
    }
    found = mask(body)
    text = json.dumps(found.body)
    assert secret not in text and "@" not in text
    assert found.mask.values == {"<EMAIL_1>": secret}
    arguments = found.body["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"to": ["<EMAIL_1>"]}
    assert json.loads(found.body["messages"][3]["content"]) == {"<EMAIL_1>": {"sent": ["<EMAIL_1>"]}}
    assert found.body["user"] == found.body["safety_identifier"] == "masked-9"


def test_a_body_without_personal_data_is_the_same_body() -> None:
    arguments = '{ "to" :  1.50, "at": 12345678901234567890123 }'
    body = chat("nothing 12", seed=4111111111111111, temperature=0.5, user="u-17", stop=None, metadata={"a": arguments})
    found = mask(body)
    assert found.body == body and not found.mask.values and not found.kinds


def test_json_inside_a_text_stays_json_whatever_its_escapes() -> None:
    text = '{"note": "line\\nbob@x.com", "escaped": "\\u0062ob\\u0040x.com", "card": 4111111111111111}'
    found = mask(chat(text)).body["messages"][0]["content"]
    assert json.loads(found) == {"note": "line\n<EMAIL_1>", "escaped": "<EMAIL_1>", "card": "<CARD_1>"}


def test_a_name_that_is_there_twice_hides_nothing() -> None:
    found = mask(chat('{"a": "bob@x.com", "a": "clean"}'))
    assert "bob" not in json.dumps(found.body)


def test_the_callers_own_placeholders_survive() -> None:
    body = chat("<EMAIL_1> and <EMAIL_3> are mine, bob@x.com and ann@x.com and eve@x.com are not")
    found = mask(body)
    assert found.mask.values == {"<EMAIL_2>": "bob@x.com", "<EMAIL_4>": "ann@x.com", "<EMAIL_5>": "eve@x.com"}
    answer = {"choices": [{"index": 0, "message": {"content": found.body["messages"][0]["content"]}}]}
    Restorer(found.mask).answer(answer)
    assert answer["choices"][0]["message"] == {"content": body["messages"][0]["content"]}


@pytest.mark.parametrize("field", ["prompt", "input"])
@pytest.mark.parametrize("ids", [[1, 2], [[1, 2]], ["text", [3]]])
def test_token_ids_are_refused(field: str, ids: list[Any]) -> None:
    with pytest.raises(Unmaskable) as refusal:
        texts_of({field: ids})
    assert refusal.value.field == field


def test_a_number_that_is_personal_data_is_refused_where_it_must_stay_a_number() -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": 4111111111111111}}}
    with pytest.raises(Unmaskable) as refusal:
        mask(chat("hi", response_format=schema))
    assert refusal.value.field == "response_format"


def test_values_nested_too_deeply_are_refused() -> None:
    deep: Any = "bob@x.com"
    for _ in range(200):
        deep = [deep]
    with pytest.raises(Unmaskable):
        texts_of(chat("hi", tools=deep))


def test_a_refused_kind_refuses_before_anything_is_masked() -> None:
    with pytest.raises(Refused) as refusal:
        mask(chat("bob@x.com 4111111111111111"), Policy(frozenset({"card"}), frozenset({"email"})))
    assert refusal.value.kind == "card"


def test_the_header_is_an_end_users_name_too() -> None:
    body = chat("hi")
    findings = {text: spans(text) for text in texts_of(body, "bob@x.com")}
    found = mask_body(body, findings, POLICY, pseudonym=lambda _: "masked-1", end_user="bob@x.com")
    assert found.end_user == "masked-1"


@given(st.lists(st.sampled_from(["bob@x.com", "ann@x.com", "4111111111111111", "<EMAIL_1>", " ", "a", '"', "é"])))
def test_whatever_was_masked_comes_back(pieces: list[str]) -> None:
    text = " ".join(pieces)
    found = mask(chat(text))
    masked = found.body["messages"][0]["content"]
    assert "@" not in masked and "4111" not in masked
    answer = {"choices": [{"index": 0, "message": {"content": masked}}]}
    Restorer(found.mask).answer(answer)
    assert answer["choices"][0]["message"]["content"] == text


def test_a_mask_shows_no_value_by_accident() -> None:
    assert "bob" not in repr(Mask({"<EMAIL_1>": "bob@x.com"})) and "bob" not in repr(mask(chat("bob@x.com")))


def test_the_stricter_policy_wins() -> None:
    consumer, creator = Policy.of({"email": "mask", "card": "refuse"}), Policy.of({"email": "refuse", "ip": "mask"})
    both = consumer.stricter(creator)
    assert both == creator.stricter(consumer)
    assert {kind: both.action(kind) for kind in ("email", "card", "ip", "phone")} == {
        "email": "refuse",
        "card": "refuse",
        "ip": "mask",
        "phone": "pass",
    }
    assert consumer.stricter(NO_POLICY) == consumer and not NO_POLICY and consumer


@pytest.mark.parametrize("wanted", [[], "mask", {"secret": "mask"}, {"email": "hide"}, {"email": None}, {5: "mask"}])
def test_a_policy_that_cannot_hold_is_refused(wanted: Any) -> None:
    with pytest.raises(PolicyError):
        check_policy(wanted)


def test_a_policy_needs_the_package_but_an_empty_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_policy({"email": "mask", "card": "pass"}) == {"email": "mask"}
    monkeypatch.setattr("marketplace.guards.policies._MODULE", "presidio_that_is_not_there")
    with pytest.raises(PolicyError, match="presidio-analyzer"):
        check_policy({"email": "mask"})
    assert check_policy({"email": "pass"}) == {}
