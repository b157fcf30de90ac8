"""The JSON Schemas of the request bodies of `/v1`, as the structs that parse them say.

`protocol/openai_bodies.json` holds them for those who may not import this package: `python -m serving.http.describe`
writes it, and a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

import protocol
from serving.http.schema import ChatBody, CompletionBody, EmbeddingBody

FILE = Path(protocol.__file__).parent / "openai_bodies.json"


def describe_bodies() -> dict[str, Any]:
    """Return the schemas by name; references are those of an OpenAPI document."""
    kinds = (ChatBody, CompletionBody, EmbeddingBody)
    return msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")[1]


def written() -> str:
    """Return the text of the file."""
    return json.dumps(describe_bodies(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
