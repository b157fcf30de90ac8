"""`intarsia eval`: check rows, seal them on this machine, upload ciphertext, run them on the platform."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from creator_cli.control_api import ControlApi
from creator_cli.errors import CliError, Refused
from creator_cli.eval_records import EvalRun, EvalSet
from creator_cli.identity import load_identity, register_identity
from creator_cli.known_platforms import KnownPlatforms
from creator_cli.names import ModelName, parse_model_name
from creator_cli.output import Output
from creator_cli.settings import Settings
from creator_cli.upload import upload_package
from protocol.errors import ProtocolError
from protocol.eval_rows import MAX_SET_BYTES, RowRefused, Scorer, read_rows, read_scorer
from sealed_weights.header import CHUNK_SIZE, HEADER_SIZE, TAG_SIZE
from sealed_weights.keys import generate_key
from sealed_weights.package import seal_rows
from sealed_weights.secret_memory import wipe
from sealed_weights.signing import SIGNATURE_SIZE, CreatorIdentity
from sealed_weights.wrap import fingerprint, wrap_dek_for_platform

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Rows that keep every rule: their bytes, how many they are, and the scorer for them."""

    data: bytes
    count: int
    scorer: Scorer

    @property
    def package_size(self) -> int:
        """Return the size of the sealed set in bytes."""
        return HEADER_SIZE + len(self.data) + TAG_SIZE * -(-len(self.data) // CHUNK_SIZE) + SIGNATURE_SIZE


def make_scorer(kind: str, fields: list[str], tolerance: float | None) -> Scorer:
    """Return the scorer of the command's options; raises Refused."""
    wanted: dict[str, Any] = {"kind": kind}
    if kind == "fields":
        wanted["fields"] = fields
    elif len(fields) > 1:
        raise Refused(f"the scorer {kind} takes one --field", field="field")
    elif fields:
        wanted["field"] = fields[0]
    if tolerance is not None:
        wanted["tolerance"] = tolerance
    try:
        return read_scorer(wanted)
    except ProtocolError as error:
        raise Refused(str(error), field="scorer") from None


def check_rows(path: Path, scorer: Scorer, output_schema: Mapping[str, Any] | None) -> CheckedRows:
    """Read a file of rows and check it as the platform will; raises Refused with the row and the rule."""
    if path.stat().st_size > MAX_SET_BYTES:
        raise Refused(f"{path}: a set has at most {MAX_SET_BYTES >> 20} MB", field="rows")
    data = path.read_bytes()
    try:
        return CheckedRows(data, len(read_rows(data, scorer, output_schema)), scorer)
    except RowRefused as refusal:
        raise Refused(f"{path}: {refusal}", field="rows") from None


def push_set(api: ControlApi, settings: Settings, model: ModelName, rows: CheckedRows, out: Output) -> EvalSet:
    """Seal rows under a fresh key and upload them as the model's next set. Raises Refused, CliError, ApiError."""
    intake_key = api.intake_key()
    if KnownPlatforms.load(settings).check_intake_key(api.url, intake_key):
        out.note(f"trusting {api.url} from now on: intake key {fingerprint(intake_key)[:16]}…")
    identity = load_identity(settings)
    started = api.start_eval_set(
        model,
        signing_key_id=register_identity(api, model.organization, identity),
        size=rows.package_size,
        rows=rows.count,
        scorer=msgspec.to_builtins(rows.scorer),
    )
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
        package = Path(folder) / "rows.sealed"
        digest, wrapped = _seal(rows, package, started, identity, intake_key)
        with out.progress("uploading", rows.package_size) as show:
            upload_package(api, f"eval-sets/{started.id}/package", package, rows.package_size, show)
        return api.complete_eval_set(started.id, digest=digest, wrapped_data_key=wrapped)


def _seal(
    rows: CheckedRows, destination: Path, started: EvalSet, identity: CreatorIdentity, intake_key: bytes
) -> tuple[str, bytes]:
    dek = generate_key()
    try:
        package = seal_rows(
            rows.data,
            destination,
            dek=dek,
            identity=identity,
            creator_id=started.creator_id,
            model_id=started.model_id,
            number=started.number,
            base_fingerprint=bytes.fromhex(started.base_fingerprint),
        )
        wrapped = wrap_dek_for_platform(
            dek,
            intake_key,
            creator_id=started.creator_id,
            model_id=started.model_id,
            version=started.number,
            digest=package.digest,
        )
    finally:
        wipe(dek)
    return package.digest, wrapped


def wait_for_run(api: ControlApi, run: EvalRun, seconds: float, out: Output) -> EvalRun:
    """Poll until the run has ended; raises CliError if it failed or takes too long."""
    deadline = time.monotonic() + seconds
    with out.waiting(f"measuring {run.model}@{run.version}: {run.calls} calls"):
        while run.state in ("waiting", "running"):
            if time.monotonic() > deadline:
                raise CliError("the run is not done yet", hint=f"intarsia eval list {run.model}")
            time.sleep(_POLL_SECONDS)
            run = api.eval_run(run.id)
    if run.state == "failed":
        raise CliError(f"the run failed: {run.reason}", code="run_failed")
    return run


def figure_of(api: ControlApi, run: EvalRun) -> dict[str, Any]:
    """Return the evaluation of a run that is done; raises CliError if the platform has none."""
    for found in api.evaluations(parse_model_name(run.model)):
        if found.get("run_id") == str(run.id):
            return dict(found)
    raise CliError("the platform has no figure of this run")


def find_set(api: ControlApi, model: ModelName, number: int | None) -> UUID:
    """Return the id of a model's set, the newest without a number; raises CliError if there is none."""
    for found in api.eval_sets(model):
        if number in (None, found.number):
            return found.id
    raise CliError(f"{model} has no such set", hint=f"intarsia eval push rows.jsonl --model {model} --scorer …")
