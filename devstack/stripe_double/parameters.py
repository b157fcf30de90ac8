"""Request parameters: bracketed form encoding, checked and converted by the TypedDicts of `stripe.params`.

The TypedDicts are generated from Stripe's own description of its API, so the double refuses every key and type that
Stripe does not know, and cannot drift from the client library in use.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import parse_qsl

from stripe import RequestOptions
from typing_extensions import get_type_hints, is_typeddict  # the module with which stripe declares its types

from devstack.stripe_double.messages import JsonObject, Refused, Request, invalid

MAX_PARAMETERS = 1_000
_KEY = re.compile(r"^([^\[\]]+)((?:\[[^\[\]]*\])*)$")
# They describe the call, not the request: the client library strips them before sending.
_OPTIONS = frozenset(RequestOptions.__annotations__)


def decode(request: Request) -> JsonObject:
    """Parse the parameters of a request, of its address or of its body. Raises Refused."""
    if request.method == "GET":
        return decode_form(request.query)
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        return _decode_multipart(kind, request.body)
    return decode_form(request.body.decode("utf-8", "replace"))


def _decode_multipart(kind: str, body: bytes) -> JsonObject:
    """Parse an upload: a file is its bytes, everything else is text."""
    message = BytesParser(policy=HTTP).parsebytes(b"content-type: " + kind.encode() + b"\r\n\r\n" + body)
    decoded: JsonObject = {}
    for part in message.iter_parts():
        content = part.get_payload(decode=True)
        name = part.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise Refused(400, "invalid_request_error", "The request body is not a form of parts.")
        decoded[name] = content if part.get_filename() else content.decode("utf-8", "replace")
    return decoded


def decode_form(text: str) -> JsonObject:
    """Parse a form: `a[b][0]=x` becomes {"a": {"b": {"0": "x"}}}. Raises Refused."""
    decoded: JsonObject = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise Refused(400, "invalid_request_error", "The request body is not form-encoded.") from None
    for key, value in pairs:
        match = _KEY.match(key)
        if match is None:
            raise invalid(key, f"Invalid parameter name: {key}")
        path = [match[1], *re.findall(r"\[([^\[\]]*)\]", match[2])]
        target = decoded
        for name in path[:-1]:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise invalid(key, f"{key} is given both as a value and as a hash")
        name = path[-1] or str(len(target))  # `a[]=x` appends
        if name in target:
            raise invalid(key, f"{key} is given twice")
        target[name] = value
    return decoded


@functools.cache
def _fields(shape: type) -> dict[str, Any]:
    # Inherited annotations are strings that only RequestOptions' own module can resolve.
    inherited = vars(sys.modules[RequestOptions.__module__]) | {"StripeContext": object}
    hints = get_type_hints(shape, localns=inherited)
    return {name: hint for name, hint in hints.items() if name not in _OPTIONS}


@functools.cache
def _required(shape: type) -> frozenset[str]:
    # `__required_keys__` cannot see NotRequired inside string annotations, so read them.
    optional = {name for name, hint in shape.__annotations__.items() if "NotRequired" in str(hint)}
    return frozenset(_fields(shape)) - optional


def parse_parameters(shape: type, given: JsonObject, *, prefix: str = "") -> JsonObject:
    """Convert `given` to the types of the TypedDict `shape`. Raises Refused naming the parameter."""
    fields = _fields(shape)
    parsed: JsonObject = {}
    for name, value in given.items():
        param = f"{prefix}[{name}]" if prefix else name
        if name not in fields:
            raise invalid(param, f"Received unknown parameter: {param}", code="parameter_unknown")
        parsed[name] = _convert(fields[name], value, param)
    for name in sorted(_required(shape) - set(given)):
        param = f"{prefix}[{name}]" if prefix else name
        raise invalid(param, f"Missing required param: {param}.", code="parameter_missing")
    return parsed


def _convert(hint: Any, value: Any, param: str) -> Any:
    if isinstance(value, bytes):
        return value  # a file
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, param)
    if is_typeddict(hint):
        if isinstance(value, dict):
            return parse_parameters(hint, value, prefix=param)
    elif origin is list:
        if isinstance(value, dict) and set(value) == {str(number) for number in range(len(value))}:
            return [_convert(arguments[0], value[str(n)], f"{param}[{n}]") for n in range(len(value))]
    elif origin is dict:
        if isinstance(value, dict):
            return {name: _convert(arguments[1], item, f"{param}[{name}]") for name, item in value.items()}
    elif isinstance(value, str):
        return _convert_text(hint, value, param)
    raise invalid(param, f"Invalid {param}: it has the wrong shape")


def _convert_union(choices: tuple[Any, ...], value: Any, param: str) -> Any:
    refusal: Refused | None = None
    # A plain string matches everything, so it is tried last.
    for choice in sorted(choices, key=lambda choice: choice is str):
        try:
            return _convert(choice, value, param)
        except Refused as error:
            refusal = error
    assert refusal is not None
    raise refusal


def _convert_text(hint: Any, value: str, param: str) -> Any:
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise invalid(param, f"Invalid {param}: must be one of {', '.join(map(str, get_args(hint)))}")
    if hint is bool:
        if value in ("true", "false"):
            return value == "true"
        raise invalid(param, f"Invalid boolean: {value}")
    if hint is int:
        if re.fullmatch(r"-?\d{1,18}", value):
            return int(value)
        raise invalid(param, f"Invalid integer: {value}", code="parameter_invalid_integer")
    if hint is str:
        return value
    raise invalid(param, f"{param} is a kind of value that this double does not know")
