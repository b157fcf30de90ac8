"""Arguments of a call held against the JSON schema of its function. Runs in a child process: both are strangers' texts.

A schema's patterns and references can take time without end, which the process's limits end.
"""

from __future__ import annotations

import json


def follows(schema_text: str, text: str) -> bool | None:
    """Return whether `text` is JSON that follows the schema; None for a schema that is none."""
    # Imported here: 100 ms, which a process that only tries grammars does without.
    import jsonschema
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    try:
        value = json.loads(text)
    except ValueError:
        return False
    try:
        schema = json.loads(schema_text)
        kind = validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        # The registry of the drafts alone: no reference is fetched from anywhere.
        return bool(kind(schema, registry=REGISTRY).is_valid(value))
    except MemoryError:
        raise
    except Exception:  # a schema that is none, a reference to nowhere, a pattern of another dialect
        return None
