"""`manage.py list_replicas`: the replicas that staff allowed, and which of them live."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from marketplace.vault.models import EnrolledReplica
from marketplace.vault.selectors import live_replicas


class Command(BaseCommand):
    """Print one line a replica: name, state, base model, host, builds, keys within an hour."""

    help = "List the replicas that may register, and whether they live."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        living = {replica.name: replica for replica in live_replicas()}
        rows = EnrolledReplica.objects.select_related("base_model").order_by("name")
        for row in rows:
            replica = living.get(row.name)
            builds = ",".join(digest[:12] for digest in row.builds) or "any build"
            self.stdout.write(
                f"{row.name}  {_state(row, live=replica is not None)}  {row.base_model.name}  {row.host}  {builds}  "
                f"{row.releases_per_hour} keys/h" + (f"  {replica.url}  {replica.pk}" if replica else "")
            )
        if not rows:
            self.stdout.write("no replica was allowed yet; see issue_replica_credential")


def _state(row: EnrolledReplica, *, live: bool) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.identity_public_key is None:
        return "waits for its credential to be used"
    return "live" if live else "silent"
