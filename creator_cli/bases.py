"""The choice of a base model among those of the platform: never a guess where there are several."""

from __future__ import annotations

from collections.abc import Sequence

from creator_cli.errors import CliError, Refused
from creator_cli.records import Base


def base_names(bases: Sequence[Base]) -> str:
    """Return the names of base models for a message."""
    return ", ".join(dict.fromkeys(base.name for base in bases)) or "none"


def choose_base(bases: Sequence[Base], wanted: str | None, *, how: str) -> Base:
    """Return the base that `wanted` names by name, line or fingerprint; without a name, the only one there is.

    how: what a person does to name one. Raises CliError where the platform has none yet, and Refused, with the names of
    those that it has, for a name of none or of several, or without a name among several.
    """
    if not bases:
        raise CliError("the platform has no base model yet", field="base")
    found = [base for base in bases if wanted is None or base.is_called(wanted)]
    if len(found) == 1:
        return found[0]
    if wanted is None:
        problem = f"the platform has several base models ({base_names(bases)})"
    elif found:
        problem = f"several base models are called {wanted}: {', '.join(base.fingerprint for base in found)}"
    else:
        problem = f"{wanted!r} is none of the platform's base models: {base_names(bases)}"
    raise Refused(problem, field="base", hint=how)
