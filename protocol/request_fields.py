"""Every field of the request bodies below `/v1` by name, and what becomes of it: one list for gateway and replica.

`used`: it has the meaning that OpenAI or docs/api.md gives it. `ignored`: it is taken, and changes nothing. `refused`:
400 when it asks for something. Any other name is 400 too: a typo, or a wish of another platform's, would be dropped
silently otherwise. docs/fields.md says why.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal, cast

from protocol.errors import RequestRefused

Use = Literal["used", "ignored", "refused"]
Body = Literal["chat", "completions", "embeddings", "responses", "moderations", "batches", "files"]


def _uses(*, used: str, ignored: str = "", refused: str = "") -> dict[str, Use]:
    given: Iterable[tuple[Use, str]] = (("used", used), ("ignored", ignored), ("refused", refused))
    return {name: use for use, names in given for name in names.split()}


_GENERATION = """model max_tokens stream stream_options n best_of stop seed temperature top_p presence_penalty
    frequency_penalty logit_bias logprobs user safety_identifier service_tier response_format
    top_k min_p repetition_penalty use_beam_search length_penalty early_stopping ignore_eos return_token_ids speculation
    confidence guided_regex guided_grammar"""
# Sent by clients on their own, with every request.
_BESIDE = "metadata store client_metadata prompt_cache_key prompt_cache_options prompt_cache_retention"

FIELDS: Mapping[Body, Mapping[str, Use]] = {
    "chat": _uses(
        used=f"""{_GENERATION} messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls
            modalities""",
        ignored=f"{_BESIDE} prediction reasoning_effort verbosity",
        refused="audio functions function_call moderation web_search_options",
    ),
    "completions": _uses(used=f"{_GENERATION} prompt echo", ignored=_BESIDE, refused="suffix"),
    "embeddings": _uses(
        used="model input encoding_format user safety_identifier service_tier", ignored=_BESIDE, refused="dimensions"
    ),
    "responses": _uses(
        used="""model input instructions stream store metadata previous_response_id max_output_tokens temperature top_p
            tools tool_choice parallel_tool_calls text service_tier user safety_identifier background truncation""",
        ignored="""include reasoning stream_options max_tool_calls client_metadata prompt_cache_key prompt_cache_options
            prompt_cache_retention""",
        refused="access_programs context_management conversation image moderation prompt top_logprobs",
    ),
    "moderations": _uses(used="model input", ignored="metadata client_metadata user safety_identifier"),
    "batches": _uses(used="input_file_id endpoint completion_window metadata", refused="output_expires_after"),
    "files": _uses(used="file purpose expires_after"),
}
# What other platforms take to say who serves a request, where, and what becomes of its data.
WISHES = frozenset(
    [
        *("allow_fallbacks", "allow_training", "data", "data_collection", "data_residency", "data_retention"),
        *("fallbacks", "geo", "inference_geo", "models", "plugins", "preset", "provider", "providers", "region"),
        *(
            "regions",
            "residency",
            "retention",
            "route",
            "router",
            "routing",
            "transforms",
            "zdr",
            "zero_data_retention",
        ),
    ]
)
_OF_FUNCTION_CALL = (None, "none", "auto")  # without `functions`, which are refused, nothing is asked for


def check_fields(body: Body | Iterable[str], data: Mapping[str, object]) -> None:
    """Raise RequestRefused for the first field of a body that is not taken. null is as good as absent.

    `body` is one of OpenAI's, or the names of the fields of one of ours, which are all used.
    """
    known = FIELDS[cast(Body, body)] if isinstance(body, str) else dict.fromkeys(body, "used")
    for name, value in data.items():
        use = known.get(name)
        if use in ("used", "ignored") or value is None:
            continue
        if use == "refused":
            asks = value not in _OF_FUNCTION_CALL if name == "function_call" else bool(value)
            if asks:
                raise RequestRefused(f"'{name}' is not supported.", code="unsupported_parameter", param=name)
            continue
        raise _unknown(name, [one for one in known if known[one] != "refused"])


def _unknown(name: str, known: list[str]) -> RequestRefused:
    if name in WISHES:
        message = (
            f"'{name}' is not supported: a wish about who serves a request and what becomes of its data is refused"
        )
        message += ", because nothing here would keep to it."
        return RequestRefused(message, code="unsupported_parameter", param=name)
    name = name[:64]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return RequestRefused(f"'{name}' is no field of this request.{hint}", code="unknown_parameter", param=name)
