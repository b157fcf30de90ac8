"""Base models added and removed by staff: a folder, and its place in a line."""

from __future__ import annotations

from pathlib import Path

from django.db import transaction
from django.db.models.deletion import ProtectedError

from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.catalog.base_inspection import FolderReport, inspect_base_folder
from marketplace.catalog.locks import lock_line
from marketplace.catalog.models import BaseLine, BaseModel, Clearance, Model
from marketplace.catalog.services.bases import BaseFolder, add_checkpoint, read_base_folder, register_reference
from protocol.checkpoints import AS_STORED, ComputedIn

MAX_NAME = 100


def add_base(
    directory: Path,
    *,
    name: str = "",
    line: str = "",
    as_checkpoint: bool = False,
    computed: ComputedIn = AS_STORED,
    precision: str = "",
) -> tuple[BaseModel, FolderReport]:
    """Register the base model in a Hugging Face folder: the reference of a line, or a checkpoint of one that is there.

    name: of the checkpoint; else the folder's, and what replicas make of it. line: else one of its own, by that name.
    Adding it again returns the first row. Raises InvalidInput for a folder that replicas cannot serve, NotFound without
    the line, Conflict where its place is taken.
    """
    directory = directory.resolve()
    report = inspect_base_folder(directory)
    folder = read_base_folder(directory, computed, precision=precision)
    made = "-".join(str(computed).replace(",", "").lower().split())
    name = name or "-".join(part for part in (directory.name, made) if part)
    if max(len(name), len(line)) > MAX_NAME:
        raise InvalidInput(f"a name may have {MAX_NAME} characters", field="name")
    if as_checkpoint:
        return add_checkpoint(line=_line(line), name=name, folder=folder), report
    return _add_reference(line or name, name, folder), report


def _line(name: str) -> BaseLine:
    line = BaseLine.objects.filter(name=name).first()
    if line is None:
        raise NotFound(f"there is no line {name}: its first checkpoint is added with --reference")
    return line


def _add_reference(line: str, name: str, folder: BaseFolder) -> BaseModel:
    present = BaseModel.objects.filter(line__name=line, is_reference=True).first()
    if present is not None and present.fingerprint != folder.fingerprint and line != name:
        raise Conflict(
            f"the line {line} has a reference, {present.name}; add this one with --checkpoint", code="line_taken"
        )
    known = BaseModel.objects.select_related("line").filter(fingerprint=folder.fingerprint).first()
    if known is not None and not known.is_reference:
        raise Conflict(f"this checkpoint is of the line {known.line.name} already", code="checkpoint_known")
    return register_reference(name=name, line=line, folder=folder)


@transaction.atomic
def remove_base(name: str) -> BaseModel:
    """Remove the checkpoint that is called so, or has this fingerprint, and with a reference its line.

    Only what nothing uses goes: no model is made for it, no version was measured there or has leave to be served there,
    no replica was ever allowed for it. Raises NotFound, and Conflict naming the use.
    """
    found = list(BaseModel.objects.filter(name=name) or BaseModel.objects.filter(fingerprint=name))
    if not found:
        raise NotFound(f"there is no base model {name}")
    if len(found) > 1:
        several = ", ".join(base.fingerprint for base in found)
        raise Conflict(f"several are called {name}: give a fingerprint ({several})", code="ambiguous_base")
    (base,) = found
    lock_line(base.line_id)
    line, others = base.line, base.line.checkpoints.exclude(pk=base.pk).count()
    if base.is_reference and others:
        raise Conflict(f"{name} is the reference of {others} other checkpoints: remove them first", code="base_in_use")
    if models := Model.objects.filter(base_model=base).count():
        raise Conflict(f"{name} is in use: {models} models are made for it", code="base_in_use")
    Clearance.objects.filter(checkpoint=base, state=Clearance.State.WAITING, run_id=None, leave="").delete()
    try:
        base.delete()
    except ProtectedError as error:
        users = ", ".join(sorted({str(row._meta.verbose_name) for row in error.protected_objects}))
        raise Conflict(f"{name} is in use by: {users}", code="base_in_use") from None
    if base.is_reference:
        line.delete()
    return base
