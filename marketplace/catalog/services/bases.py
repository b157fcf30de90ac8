"""Base lines and their checkpoints, and the platform's own listings of bare bases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.accounts.models import Organization
from marketplace.catalog.checkpoints import MAX_CHECKPOINTS
from marketplace.catalog.locks import lock_line
from marketplace.catalog.models import BaseLine, BaseModel, Model, Version
from marketplace.catalog.services.listings import ListingText, create_model, update_model
from marketplace.catalog.services.prices import set_price
from protocol.checkpoints import AS_STORED, ComputedIn, checkpoint_fingerprint
from sealed_weights import BaseSpec, FormatError, IntakeError, base_fingerprint

_MAX_CONFIG_SIZE = 2**20


def register_base(
    *, name: str, fingerprint: str, config: dict[str, Any], context_length: int, precision: str = "", line: str = ""
) -> BaseModel:
    """Register a base model by its fingerprint (64 hex digits) as the reference of a new line, called as it is.

    Registering it again returns the first row. The name of a line is taken once: the next line of that name gets the
    fingerprint's first digits behind it.
    """
    known = BaseModel.objects.filter(fingerprint=fingerprint).first()
    if known is not None:
        return known
    try:
        with transaction.atomic():
            wanted = line or name
            if BaseLine.objects.filter(name=wanted).exists():
                wanted = f"{wanted[:90]} {fingerprint[:8]}"
            return BaseModel.objects.create(
                line=BaseLine.objects.create(name=wanted),
                is_reference=True,
                name=name,
                precision=precision,
                fingerprint=fingerprint,
                config=config,
                context_length=context_length,
            )
    except IntegrityError:  # somebody else registered it in this moment
        return BaseModel.objects.get(fingerprint=fingerprint)


@transaction.atomic
def add_checkpoint(*, line: BaseLine, name: str, folder: BaseFolder) -> BaseModel:
    """Add a checkpoint to a line that has its reference; adding it again returns the first row.

    Raises Conflict for a fingerprint or a name that is another checkpoint's, or past the limit of checkpoints;
    InvalidInput for a model that adapters of the line do not fit.
    """
    lock_line(line.pk)
    known = BaseModel.objects.filter(fingerprint=folder.fingerprint).select_related("line").first()
    if known is not None:
        if known.line_id != line.pk:
            raise Conflict(f"this checkpoint is of the line {known.line.name} already", code="checkpoint_known")
        return known
    if BaseModel.objects.filter(name=name).exists():
        raise Conflict(f"a base is called {name} already: give another name", code="name_taken", field="name")
    if line.checkpoints.count() >= MAX_CHECKPOINTS:
        raise Conflict(f"a line has at most {MAX_CHECKPOINTS} checkpoints", code="too_many_checkpoints")
    reference = line.checkpoints.get(is_reference=True)
    _require_same_shapes(reference, folder)
    return BaseModel.objects.create(
        line=line,
        is_reference=False,
        name=name,
        precision=folder.precision,
        fingerprint=folder.fingerprint,
        config=folder.config,
        context_length=folder.context_length,
    )


def register_base_directory(*, name: str, directory: Path) -> BaseModel:
    """Register the base model in a Hugging Face folder, as a line. Raises InvalidInput if the folder is none."""
    return register_reference(name=name, folder=read_base_folder(directory))


def register_reference(*, name: str, folder: BaseFolder, line: str = "") -> BaseModel:
    """Register what was read of a folder as the reference of a new line."""
    return register_base(
        name=name,
        line=line,
        fingerprint=folder.fingerprint,
        config=folder.config,
        context_length=folder.context_length,
        precision=folder.precision,
    )


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """A Hugging Face folder as it describes itself, computed in a precision. `precision` is it in words."""

    fingerprint: str
    config: dict[str, Any]
    context_length: int
    precision: str


def read_base_folder(directory: Path, computed: ComputedIn = AS_STORED, *, precision: str = "") -> BaseFolder:
    """Read a Hugging Face folder; `precision`: in words, else those of its config. Raises InvalidInput."""
    path = directory / "config.json"
    try:
        if path.stat().st_size > _MAX_CONFIG_SIZE:
            raise InvalidInput(f"{path}: larger than {_MAX_CONFIG_SIZE} bytes", field="base")
        config = json.loads(path.read_bytes())
        context_length = int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path}: not a model configuration ({error})", field="base") from None
    try:
        files = base_fingerprint(directory).hex()
    except FormatError as error:
        raise InvalidInput(f"{directory}: {error}", field="base") from None
    words = ", ".join(part for part in (precision or stored_precision(config), str(computed)) if part)
    return BaseFolder(checkpoint_fingerprint(files, computed), config, context_length, words[:60])


def stored_precision(config: Mapping[str, Any]) -> str:
    """Return the precision that a config.json says its weights have, in words; empty if it says nothing."""
    quantized = config.get("quantization_config")
    if isinstance(quantized, dict):
        bits = quantized.get("bits")
        method = str(quantized.get("quant_method", "quantized"))
        return f"{method}, {bits} bits" if type(bits) is int else method
    found = config.get("dtype") or config.get("torch_dtype")
    return found if isinstance(found, str) else ""


def _require_same_shapes(reference: BaseModel, folder: BaseFolder) -> None:
    """Raise InvalidInput unless an adapter that fits the reference fits the folder's model, and as long a context."""
    try:
        before, after = (_shapes(config) for config in (reference.config, folder.config))
    except IntakeError as error:
        raise InvalidInput(f"{error.field}: {error.rule}", field="base") from None
    if before != after:
        raise InvalidInput(
            f"its layers have other shapes than those of {reference.name}, the line's reference: make it a line of its "
            "own",
            field="base",
        )
    if folder.context_length < reference.context_length:
        raise InvalidInput(
            f"max_position_embeddings: {folder.context_length} is less than the reference's {reference.context_length}",
            field="base",
        )


def _shapes(config: Mapping[str, Any]) -> tuple[object, ...]:
    spec = BaseSpec.from_hf_config(config, bytes(32))
    return spec.hidden_size, spec.num_layers, dict(spec.shapes), config.get("vocab_size")


@transaction.atomic
def list_base_model(
    *,
    organization: Organization,
    slug: str,
    base_model: BaseModel,
    text: ListingText,
    price: Mapping[str, int],
) -> Model:
    """List the bare base model under the platform's organization, published as version 1; again, only updates its text.

    `price` are the amounts of `set_price`.

    It has no package, so a version's other states do not apply to it.
    """
    model = Model.objects.filter(organization=organization, slug=slug).first()
    if model is None:
        model = create_model(organization=organization, slug=slug, base_model=base_model, text=text)
        model.kind = Model.Kind.BASE
        model.save(update_fields=["kind"])
        set_price(model=model, **price)  # type: ignore[arg-type]  # amounts alone
    elif model.base_model_id != base_model.id:
        # Another BASE_MODEL than last time: the listing follows what the replicas serve now.
        model.base_model = base_model
        model.save(update_fields=["base_model"])
    update_model(model=model, text=text)
    now = timezone.now()
    Version.objects.get_or_create(
        model=model, number=1, defaults={"state": Version.State.PUBLISHED, "published_at": now, "package_digest": None}
    )
    return model
