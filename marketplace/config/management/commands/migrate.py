"""`manage.py migrate`: Django's, as the owner of the schema, and then the grants of the application's role.

It logs in by `DATABASE_ADMIN_URL`; no other command and no process of the platform knows that login. The roles come
first of all: Django's checks already ask the database, and on a new server the application's role does not exist yet.
The extensions come second, because a migration may use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as DjangoMigrate
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

from marketplace.catalog.search.vectors import add_vectors
from marketplace.config.extensions import ExtensionMissing, prepare_extensions
from marketplace.config.first_migration import rendering_less
from marketplace.config.grants import RuleMissing, apply_grants
from marketplace.config.roles import OWNER, Login, RolesError, prepare_roles


class Command(DjangoMigrate):
    help = "Change the schema as its owner, then give the application's database role its rights."

    def execute(self, *args: Any, **options: Any) -> Any:
        """Prepare the roles; then check, migrate and grant as the owner of the schema. Raises CommandError."""
        if not settings.ENV.database_admin_url:
            raise CommandError("DATABASE_ADMIN_URL is not set: `migrate` needs the login of the administrator")
        connection = connections[options["database"]]
        administrator = Login.of(settings.ENV.database_admin_url)
        try:
            with _logged_in(connection, administrator):
                connection.ensure_connection()
                application = Login.of(settings.ENV.database_url)
                prepare_roles(connection.connection, application=application)
                prepare_extensions(connection.connection, application=application.user)
            with _logged_in(connection, administrator, role=OWNER):
                return super().execute(*args, **options)
        except (RolesError, ExtensionMissing, RuleMissing) as error:
            raise CommandError(str(error)) from None

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate, add the vectors of search where pgvector is new, and grant, as the owner. Raises RuleMissing."""
        connection = connections[options["database"]]
        with nullcontext() if MigrationRecorder(connection).applied_migrations() else rendering_less():
            super().handle(*args, **options)
        with connection.cursor() as cursor:
            add_vectors(cursor)
        apply_grants(connection, application=Login.of(settings.ENV.database_url).user)


@contextmanager
def _logged_in(connection: BaseDatabaseWrapper, login: Login, *, role: str | None = None) -> Iterator[None]:
    """Let Django's connection log in as `login` and act as `role`, and be as before afterwards."""
    before = dict(connection.settings_dict)
    options = {name: value for name, value in before["OPTIONS"].items() if name not in ("pool", "options")}
    if role is not None:
        options["options"] = f"-c role={role}"
    connection.close()
    connection.settings_dict.update(USER=login.user, PASSWORD=login.password, OPTIONS=options)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)
