"""The platform's look at its own custody: every creator's chain of releases, and every row that carries authority.

A chain that does not hold together, or a row that is not sealed, was changed past the platform. Staff are told by an
incident, once until somebody has looked.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps

from billing.ledger import record_incident
from billing.models import Incident
from marketplace.accounts.models import Organization
from marketplace.accounts.seals import SealBroken, SealedModel, require_seal
from marketplace.accounts.seals.beside import PROTECTED
from marketplace.vault.errors import ChainBroken
from marketplace.vault.selectors import verify_own_chain

_AT_ONCE = 2_000  # rows in memory


def check_custody() -> int:
    """Check all chains and rows; open an incident for each that was changed, and return how many there are."""
    found = 0
    for organization in Organization.objects.filter(releases__isnull=False).distinct().iterator(_AT_ONCE):
        try:
            verify_own_chain(organization=organization)
        except ChainBroken as error:
            _tell(Incident.Kind.CUSTODY_CHAIN, str(organization.pk), str(error))
            found += 1
    for table, row in unsealed_rows():
        _tell(Incident.Kind.ROW_SEAL, f"{table} {row}"[-64:], f"{table}: row {row} is not sealed by this platform")
        found += 1
    return found


def unsealed_rows() -> Iterator[tuple[str, str]]:
    """Yield table and primary key of each row that carries authority and that the platform did not write as it is."""
    for model in apps.get_models():
        if issubclass(model, SealedModel):
            table = model._meta.db_table
            for pk, seal, *values in model.objects.values_list("pk", "seal", *model.SEALED).iterator(_AT_ONCE):
                try:
                    require_seal(table, model.SEALED, values, seal)
                except SealBroken:
                    yield table, str(pk)
    for foreign in PROTECTED:
        table = foreign._meta.db_table
        for pk in foreign._default_manager.values_list("pk", flat=True).iterator(_AT_ONCE):
            try:
                foreign._default_manager.filter(pk=pk).first()  # loaded, which checks its seal
            except SealBroken:
                yield table, str(pk)


def _tell(kind: Incident.Kind, subject: str, why: str) -> None:
    record_incident(kind=kind, subject=subject, detail={"reason": why})
