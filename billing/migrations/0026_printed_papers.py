"""The files of papers are kept as they were first printed, so that no later program or font prints them anew."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

KEEP = """
CREATE TRIGGER billing_paperfile_append_only BEFORE UPDATE OR DELETE ON billing_paperfile
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER billing_paperfile_no_truncate BEFORE TRUNCATE ON billing_paperfile
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""
LET_GO = """
DROP TRIGGER billing_paperfile_append_only ON billing_paperfile;
DROP TRIGGER billing_paperfile_no_truncate ON billing_paperfile;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0025_fast_settling"),
    ]

    operations = [
        migrations.CreateModel(
            name="PaperFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("pdf", "Pdf"), ("csv", "Csv")], max_length=3)),
                ("content", models.BinaryField()),
                ("printed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "paper",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="files",
                        to="billing.paper",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("paper", "kind"), name="billing_paperfile_printed_once")
                ],
            },
        ),
        migrations.RunSQL(KEEP, LET_GO),
    ]
