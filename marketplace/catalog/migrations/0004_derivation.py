"""A model may be derived from another one, and owe it a royalty; the declaration stands."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

KEEP = """
CREATE FUNCTION catalog_keep_derivation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what a model is derived from stands once it is declared'
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER catalog_keep_derivation BEFORE UPDATE ON catalog_model FOR EACH ROW
    WHEN (OLD.derived_from_id IS NOT NULL
        AND (OLD.derived_from_id, OLD.royalty_bps) IS DISTINCT FROM (NEW.derived_from_id, NEW.royalty_bps))
    EXECUTE FUNCTION catalog_keep_derivation();
"""
FORGET = """
DROP TRIGGER catalog_keep_derivation ON catalog_model;
DROP FUNCTION catalog_keep_derivation();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0003_referrals"),
        ("catalog", "0003_prices_in_time"),
    ]

    operations = [
        migrations.AddField(
            model_name="model",
            name="derivative_royalty_bps",
            field=models.PositiveIntegerField(
                blank=True, null=True, validators=[django.core.validators.MaxValueValidator(10000)]
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="derived_from",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="derivatives",
                to="catalog.model",
            ),
        ),
        migrations.AddField(
            model_name="model",
            name="royalty_bps",
            field=models.PositiveIntegerField(
                db_default=0, default=0, validators=[django.core.validators.MaxValueValidator(10000)]
            ),
        ),
        migrations.AddConstraint(
            model_name="model",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("royalty_bps__lte", 10000),
                    models.Q(
                        ("derivative_royalty_bps__isnull", True),
                        ("derivative_royalty_bps__lte", 10000),
                        _connector="OR",
                    ),
                    models.Q(("derived_from__isnull", False), ("royalty_bps", 0), _connector="OR"),
                ),
                name="model_royalty_fits",
            ),
        ),
        migrations.RunSQL(KEEP, FORGET),
    ]
