"""`manage.py prepare_platform`: schema, platform keys, sample accounts, the base listing and the local replica's
credential, in one process.

Four commands in one because each start of Django costs a second; all are idempotent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Migrate, make the platform's keys, create the sample accounts, and allow the local replica to enrol."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--base-dir", required=True, help="Hugging Face folder of the base model")
        parser.add_argument("--credentials", required=True, help="JSON file: role -> {email, password}")
        parser.add_argument("--replica", help="name of the replica on this machine, unless there is a fleet")
        parser.add_argument("--replica-credential", help="file for its credential, until it is enrolled")
        parser.add_argument(
            "--pool", action="append", default=[], metavar="NAME=DTYPE", help="a pool of a fleet; repeat for several"
        )
        parser.add_argument("--pool-replicas", type=int, default=8, help="replicas of a pool that may live at once")
        parser.add_argument("--fleet-credentials", help="folder for the pools' credentials, `credential-NAME`")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        call_command("bootstrap_vault")
        call_command("seed_samples", base_dir=options["base_dir"], credentials=options["credentials"])
        folder = Path(options["base_dir"]).resolve()
        if options["replica"]:
            call_command(
                "issue_replica_credential",
                options["replica"],
                base=folder.name,
                host="127.0.0.1",
                credential_file=Path(options["replica_credential"]),
                unless_enrolled=True,
            )
        for pool in options["pool"]:
            name, _, dtype = pool.partition("=")
            self._allow(name, dtype, folder, options)

    def _allow(self, pool: str, dtype: str, folder: Path, options: dict[str, Any]) -> None:
        """Allow a pool of this base model; in another precision, that is a checkpoint of its line."""
        base = folder.name
        if dtype != "auto":
            base = f"{folder.name}-{dtype}"
            call_command("add_base_model", folder, name=base, line=folder.name, checkpoint=True, dtype=dtype)
        call_command(
            "issue_fleet_credential",
            pool,
            base=base,
            host="127.0.0.0/8",
            replicas=options["pool_replicas"],
            credential_file=Path(options["fleet_credentials"]) / f"credential-{pool}",
            unless_issued=True,
        )
