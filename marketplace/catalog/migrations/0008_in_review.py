"""A version may wait for a person: one more word in the list of states, nothing in the database."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0007_contract"),
    ]

    operations = [
        migrations.AlterField(
            model_name="version",
            name="state",
            field=models.CharField(
                choices=[
                    ("uploading", "Uploading"),
                    ("verifying", "Verifying"),
                    ("verified", "Verified"),
                    ("refused", "Refused"),
                    ("in_review", "In Review"),
                    ("published", "Published"),
                    ("retired", "Retired"),
                    ("revoked", "Revoked"),
                ],
                default="uploading",
                max_length=16,
            ),
        ),
    ]
