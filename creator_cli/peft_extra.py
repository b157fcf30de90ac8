"""The one door to `peft_bridge`: its packages are an extra of the command, and take seconds to import."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from types import ModuleType

from creator_cli.errors import CliError, Refused
from creator_cli.output import Output

INSTALL = "pip install 'intarsia[convert]'"


@contextlib.contextmanager
def bridge(out: Output) -> Iterator[ModuleType]:
    """Yield the package `peft_bridge`; its errors become Refused. Raises CliError where the extra is not installed."""
    with out.waiting("loading torch, transformers and PEFT"):
        try:
            import peft_bridge
        except ImportError as error:
            missing = error.name or "a package"
            raise CliError(f"this needs PEFT, transformers and torch: {missing} is missing", hint=INSTALL) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice to its own callers
        try:
            yield peft_bridge
        except peft_bridge.BridgeError as error:
            raise Refused(str(error), field=error.field, hint=error.hint) from None
