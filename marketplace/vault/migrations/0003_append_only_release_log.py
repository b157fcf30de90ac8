"""The release log is append-only: the database itself refuses to change or delete a row."""

from django.db import migrations

FORBID = """
CREATE FUNCTION vault_release_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the release log is append-only' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER vault_release_append_only BEFORE UPDATE OR DELETE ON vault_release
    FOR EACH ROW EXECUTE FUNCTION vault_release_is_append_only();
"""
ALLOW = """
DROP TRIGGER vault_release_append_only ON vault_release;
DROP FUNCTION vault_release_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("vault", "0002_find_replica_by_session")]
    operations = [migrations.RunSQL(FORBID, ALLOW)]
