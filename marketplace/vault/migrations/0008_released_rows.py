"""Keys of sets of rows are released to a run of the platform: the log has that run in the place of a replica."""

from __future__ import annotations

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models

ONE_HOLDER = models.Q(purpose="eval", replica__isnull=True, run_id__isnull=False) | (
    ~models.Q(purpose="eval") & models.Q(replica__isnull=False, run_id__isnull=True)
)


class Migration(migrations.Migration):
    dependencies: ClassVar = [("vault", "0007_answer_keys")]
    operations: ClassVar = [
        migrations.AddField("release", "run_id", models.UUIDField(null=True)),
        migrations.AlterField(
            "release",
            "replica",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="releases",
                to="vault.replica",
            ),
        ),
        migrations.AlterField(
            "release",
            "purpose",
            models.CharField(choices=[("verify", "Verify"), ("serve", "Serve"), ("eval", "Eval")], max_length=8),
        ),
        migrations.AddConstraint(
            "release", models.CheckConstraint(condition=ONE_HOLDER, name="release_has_one_holder")
        ),
    ]
