"""The operations below `/v1`, each in one entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REFUSALS = {
    400: "A field or header is wrong; `param` names it. Nothing was charged.",
    401: "There is no API key, or one that is not valid, revoked or expired.",
    402: "The worst case does not fit the credit or a budget (`insufficient_funds`, `budget_exceeded`).",
    403: "The key may not do this, or the model was withdrawn.",
    404: "There is no such thing, or it is not for sale to the caller.",
    405: "The method is another; the header `Allow` names it.",
    408: "The body did not arrive within 60 s.",
    409: "The state does not allow it, or a call under the same `Idempotency-Key` is under way.",
    413: "The body is larger than allowed.",
    415: "The body has a `Content-Encoding` other than gzip.",
    422: "The `Idempotency-Key` was used with another body.",
    429: "Too many requests; `Retry-After` says when to try again.",
    500: "A fault of the platform. Nothing was charged.",
    502: "The replica broke. Nothing was charged.",
    507: "There is no room for more files.",
    503: "No replica can answer now, or the outcome is not known (`outcome_unknown`: look at your usage first).",
}
_OF_EVERY_CALL = (401, 403, 405, 429, 503)
_OF_A_BODY = (400, 408, 413, 415)
_OF_A_PREDICTION = (402, 404, 409, 422, 500, 502)


@dataclass(frozen=True)
class Header:
    """A header that requests may carry."""

    name: str
    text: str
    schema: Mapping[str, Any]


IDEMPOTENCY = Header(
    "Idempotency-Key",
    "A retry with the same key and body gets the first answer again for 24 hours, and pays nothing.",
    {"type": "string", "maxLength": 255},
)
END_USER = Header(
    "X-Intarsia-End-User",
    "For whom the caller asks: their spending is counted and limited by this name.",
    {"type": "string", "maxLength": 64},
)
ON_BUDGET = Header(
    "X-Intarsia-On-Budget",
    "`stop` lets the answer end where the budget or the credit ends, instead of a refusal.",
    {"type": "string", "enum": ["refuse", "stop"], "default": "refuse"},
)
RUN = Header("X-Intarsia-Run", "The run that the call belongs to and is paid from.", {"type": "string"})


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path. `body` and `answer` name schemas; `streams`: events are another form of the answer."""

    id: str
    path: str
    text: str
    answer: str
    method: str = "post"
    body: str | None = None
    streams: bool = False
    predicts: bool = False  # money is set aside for it
    statuses: tuple[int, ...] = ()  # refusals beside those of every call
    parameters: tuple[Mapping[str, Any], ...] = ()
    headers: tuple[Header, ...] = ()
    success: int = 200
    tag: str = "predictions"
    scopes: tuple[str, ...] = ("predict",)  # any of these
    body_type: str = "application/json"
    answer_type: str = "application/json"


def named(name: str, text: str) -> Mapping[str, Any]:
    """Return a parameter of a path."""
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}


PREDICTIONS: tuple[Operation, ...] = (
    Operation(
        id="create_chat_completion",
        path="/v1/chat/completions",
        text="Answer a chat. With `stream`, the answer comes as server-sent events.",
        body="ChatBody",
        answer="ChatCompletion",
        streams=True,
        predicts=True,
        headers=(IDEMPOTENCY, END_USER, ON_BUDGET, RUN),
    ),
    Operation(
        id="create_completion",
        path="/v1/completions",
        text="Complete one or several prompts.",
        body="CompletionBody",
        answer="Completion",
        streams=True,
        predicts=True,
        headers=(IDEMPOTENCY, END_USER, ON_BUDGET, RUN),
    ),
    Operation(
        id="create_embeddings",
        path="/v1/embeddings",
        text="Turn texts into vectors, for models that sell embeddings (404 `not_offered` else).",
        body="EmbeddingBody",
        answer="Embeddings",
        predicts=True,
        headers=(IDEMPOTENCY, END_USER, RUN),
    ),
    Operation(
        id="create_moderation",
        path="/v1/moderations",
        text="Let a guard judge texts; each piece of a text is a prediction of the guard.",
        body="ModerationBody",
        answer="Moderation",
        predicts=True,
    ),
    Operation(
        id="quote",
        path="/v1/quote",
        text="Say what a prediction with this body would cost, at most and typically. Charges nothing.",
        body="QuotedBody",
        answer="PredictionQuote",
        statuses=(404,),
        headers=(END_USER,),
    ),
    Operation(
        id="give_feedback",
        path="/v1/feedback",
        text="Give a thumb to an answer that the organization paid for in the last 30 days.",
        body="Feedback",
        answer="Feedback",
        statuses=(404, 409),
    ),
    Operation(
        id="list_callable_models",
        path="/v1/models",
        method="get",
        text="List the models that the key may call.",
        answer="CallableModels",
    ),
    Operation(
        id="get_callable_model",
        path="/v1/models/{org}/{slug}",
        method="get",
        text="Return one of them.",
        answer="CallableModel",
        statuses=(404,),
        parameters=(
            named("org", "the creator's name"),
            named("slug", "the model's name; `slug@3` is its third version"),
        ),
    ),
)


def described(operation: Operation) -> dict[str, Any]:
    """Return the operation as OpenAPI writes it."""
    found: dict[str, Any] = {
        "operationId": operation.id,
        "description": operation.text,
        "tags": [operation.tag],
        "security": [{"ApiKey": []}],
        "x-scopes": list(operation.scopes),
        "parameters": [*operation.parameters, *map(_header, operation.headers)],
        "responses": {str(operation.success): _success(operation)},
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {operation.body_type: {"schema": _ref(operation.body)}}}
    statuses = {*_OF_EVERY_CALL, *operation.statuses}
    statuses |= {*_OF_A_BODY} if operation.body is not None else set()
    statuses |= {*_OF_A_PREDICTION} if operation.predicts else set()
    statuses |= {409, 422} if IDEMPOTENCY in operation.headers else set()
    for status in sorted(statuses):
        content = {"application/json": {"schema": _ref("Refusal")}}
        found["responses"][str(status)] = {"description": _REFUSALS[status], "content": content}
    return found


def _success(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.answer_type: {"schema": _ref(operation.answer)}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    answer: dict[str, Any] = {"description": "", "content": content}
    if operation.predicts:
        schema = {"type": "string", "format": "uuid"}
        answer["headers"] = {"X-Intarsia-Prediction": {"description": "names the prediction", "schema": schema}}
    return answer


def _header(header: Header) -> dict[str, Any]:
    return {"name": header.name, "in": "header", "description": header.text, "schema": dict(header.schema)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
