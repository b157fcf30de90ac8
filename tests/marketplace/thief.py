"""A thief of the application's database login: SQL past the ORM, in the application's role, and nothing else.

The thief knows the schema and this source, and has an account like everybody. They lack the root key and the secrets of
the environment.
"""

from __future__ import annotations

import json
from typing import Any

from django.db import connection
from psycopg.types.json import Jsonb


def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows, if it has any."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []


def change(table: str, where: str, *values: Any, **columns: Any) -> None:
    """Change rows."""
    setting = ", ".join(f"{name} = %s" for name in columns)
    run(f"UPDATE {table} SET {setting} WHERE {where}", *(_sql(value) for value in columns.values()), *values)


def copy(table: str, where: str, *values: Any, **columns: Any) -> None:
    """Add a copy of a row that the platform made, its seal included, with other values in some columns."""
    [(text,)] = run(f"SELECT to_jsonb(t)::text FROM {table} t WHERE {where}", *values)
    found = {name: value for name, value in json.loads(text).items() if name != "id"} | columns
    names = ", ".join(found)
    run(f"INSERT INTO {table} ({names}) SELECT {names} FROM jsonb_populate_record(NULL::{table}, %s)", Jsonb(found))


def _sql(value: Any) -> Any:
    return Jsonb(value) if isinstance(value, dict) else value
