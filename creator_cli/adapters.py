"""The strict intake on this machine: the same parser that the platform's replicas run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from creator_cli.errors import CliError, Refused
from creator_cli.records import Base
from sealed_weights.contract import Contract, read_contract
from sealed_weights.errors import FormatError, IntakeError
from sealed_weights.header import CHUNK_SIZE, HEADER_SIZE, TAG_SIZE
from sealed_weights.intake.adapter_config import MAX_CONFIG
from sealed_weights.intake.base_model import BaseSpec
from sealed_weights.intake.check import AdapterSummary, check_adapter
from sealed_weights.payload import CONFIG_NAME, TENSORS_NAME, tensors_offset
from sealed_weights.reference import Reference, read_reference
from sealed_weights.signing import SIGNATURE_SIZE


@dataclass(frozen=True, slots=True)
class CheckedAdapter:
    """An accepted adapter, the base that it fits, and the size in bytes that it will have when sealed.

    reference: PEFT's answers, which `check --against-peft` wrote
    """

    folder: Path
    base: Base
    summary: AdapterSummary
    package_size: int
    contract: Contract | None
    reference: Reference | None = None

    def report(self) -> dict[str, Any]:
        """Return what `--json` says about the adapter."""
        found = self.summary
        contract = self.contract
        return {
            "contract": None if contract is None else contract_report(contract),
            "peft_answers": 0 if self.reference is None else len(self.reference.answers),
            "rank": found.rank,
            "targets": list(found.targets),
            "dtype": found.dtype,
            "tensors": found.tensor_count,
            "parameters": found.parameter_count,
            "bytes": found.bytes,
            "use_rslora": found.use_rslora,
            "extras": list(found.extras.kinds),
        }


def check_against(folder: Path, base: Base) -> CheckedAdapter:
    """Check the adapter in `folder` against `base`, reading every value; raises Refused with field and rule."""
    try:
        spec = BaseSpec.from_hf_config(base.config, bytes.fromhex(base.fingerprint), base.name)
        summary = check_adapter(folder, spec)
        contract, reference = read_contract(folder), read_reference(folder)
        size = sealed_size(folder, contract, reference)
        return CheckedAdapter(folder, base, summary, size, contract, reference)
    except IntakeError as error:
        raise Refused(f"{error.field}: {error.rule}", field=error.field) from None
    except FormatError as error:  # a contract or reference that is no regular file
        raise Refused(str(error), field=str(error).partition(":")[0]) from None
    except OSError as error:
        raise Refused(f"{folder}: cannot be read ({error.strerror})", field="adapter") from None


def check_against_any(folder: Path, bases: Sequence[Base]) -> CheckedAdapter:
    """Check against the bases in turn and return the first fit; raises the refusal of the newest base if none fits."""
    if not bases:
        raise CliError("the platform has no base model yet", hint="intarsia check --base-config FILE")
    refusals = []
    for base in bases:
        try:
            return check_against(folder, base)
        except Refused as refusal:
            refusals.append(refusal)
    raise refusals[0]


def read_base_config(path: Path) -> Base:
    """Read a Hugging Face config.json as a base; raises Refused."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG + 1)
        value = json.loads(data) if len(data) <= MAX_CONFIG else None
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})", field="base-config") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(f"{path}: must be a Hugging Face config.json", field="base-config")
    # A check needs only the shapes. The fingerprint is for packages.
    return Base(str(value.get("_name_or_path") or value.get("model_type") or path.name), "0" * 64, value)


def contract_report(contract: Contract) -> dict[str, Any]:
    """Return what `--json` says about a contract; its words stay out of it."""
    return {
        "instructions": len(contract.instructions),
        "messages": contract.messages,
        "output": "text" if contract.output is None else "schema",
        "max_tokens": contract.max_tokens,
        "sampling": dict(contract.sampling),
        "system": contract.system,
        "logprobs": contract.logprobs,
        "examples": len(contract.examples),
    }


def sealed_size(folder: Path, contract: Contract | None, reference: Reference | None = None) -> int:
    """Return the exact size in bytes that the sealed package of `folder` will have: the upload is announced with it."""
    contract_length = None if contract is None else len(contract.to_bytes())
    reference_length = None if reference is None else len(reference.to_bytes())
    offset = tensors_offset((folder / CONFIG_NAME).stat().st_size, contract_length, reference_length)
    plaintext = offset + (folder / TENSORS_NAME).stat().st_size
    return HEADER_SIZE + plaintext + -(-plaintext // CHUNK_SIZE) * TAG_SIZE + SIGNATURE_SIZE
