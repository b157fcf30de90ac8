from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("planning", "0001_initial")]

    operations = [
        migrations.AddField("planfile", "base", models.CharField(blank=True, default="", max_length=64)),
        migrations.RemoveIndex("planfile", "plan_file_newest"),
        migrations.AddIndex(
            "planfile", models.Index(fields=["kind", "subject", "base", "-id"], name="plan_file_newest")
        ),
    ]
