"""`manage.py change_replica`: other terms for a replica, from its next registration on."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.vault.identities import change_replica
from marketplace.vault.models import EnrolledReplica
from marketplace.vault.terms import add_terms, terms_of


class Command(BaseCommand):
    """Change base model, host, builds or budget; an option that is left out keeps its value."""

    help = "Change the terms of a replica: base model, host, builds, keys within an hour."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the replica's name and its new terms."""
        add_terms(parser, required=False)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError."""
        name = options["name"]
        known = EnrolledReplica.objects.select_related("base_model").filter(name=name).first()
        if known is None:
            raise CommandError(f"no replica is called {name}; see list_replicas")
        try:
            changed = change_replica(name=name, terms=terms_of(options, known))
        except Refusal as error:
            raise CommandError(error.message) from None
        builds = ", ".join(changed.builds) or "any"
        self.stdout.write(
            f"{name}: base {changed.base_model.name}, host {changed.host}, builds {builds}, "
            f"{changed.releases_per_hour} keys within an hour"
        )
