import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

OPEN = ("waiting", "running")


class Migration(migrations.Migration):
    dependencies = [("catalog", "0015_base_lines"), ("evals", "0002_guards")]

    operations = [
        migrations.AddField(
            "evalrun",
            "checkpoint",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="catalog.basemodel"
            ),
        ),
        migrations.RemoveConstraint("evalrun", "evals_one_open_run"),
        migrations.AddConstraint(
            "evalrun",
            models.UniqueConstraint(
                fields=["eval_set", "version"],
                condition=Q(state__in=OPEN, checkpoint__isnull=True),
                name="evals_one_open_run",
            ),
        ),
        migrations.AddConstraint(
            "evalrun",
            models.UniqueConstraint(
                fields=["version", "checkpoint"],
                condition=Q(state__in=OPEN, checkpoint__isnull=False),
                name="evals_one_open_measurement",
            ),
        ),
    ]
