"""Prices begin at a time, may be those of one version, have classes and free amounts, and never change."""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

# A price held from the moment in which it was written.
OF_OLD = "UPDATE catalog_price SET effective_at = created_at"

FORBID = """
CREATE FUNCTION catalog_price_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'a price never changes: add another' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.effective_at < now() THEN
        RAISE EXCEPTION 'a price begins now or later' USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.version_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM catalog_version WHERE id = NEW.version_id AND model_id = NEW.model_id
    ) THEN
        RAISE EXCEPTION 'the version is not one of the price''s model' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER catalog_price_guard BEFORE INSERT OR UPDATE OR DELETE ON catalog_price
    FOR EACH ROW EXECUTE FUNCTION catalog_price_guard();
"""
ALLOW = """
DROP TRIGGER catalog_price_guard ON catalog_price;
DROP FUNCTION catalog_price_guard();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0002_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="price",
            name="batch_bps",
            field=models.PositiveIntegerField(
                db_default=10000,
                default=10000,
                validators=[
                    django.core.validators.MinValueValidator(100),
                    django.core.validators.MaxValueValidator(100000),
                ],
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="effective_at",
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
        ),
        migrations.RunSQL(OF_OLD, migrations.RunSQL.noop),
        migrations.AddField(
            model_name="price",
            name="embedding_micro_usd_per_mtok",
            field=models.PositiveBigIntegerField(
                blank=True, null=True, validators=[django.core.validators.MaxValueValidator(10000000000)]
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="interactive_bps",
            field=models.PositiveIntegerField(
                db_default=10000,
                default=10000,
                validators=[
                    django.core.validators.MinValueValidator(100),
                    django.core.validators.MaxValueValidator(100000),
                ],
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="intro_free_nano_usd",
            field=models.PositiveBigIntegerField(
                db_default=0, default=0, validators=[django.core.validators.MaxValueValidator(1000000000000)]
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="monthly_free_nano_usd",
            field=models.PositiveBigIntegerField(
                db_default=0, default=0, validators=[django.core.validators.MaxValueValidator(1000000000000)]
            ),
        ),
        migrations.AddField(
            model_name="price",
            name="version",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="prices",
                to="catalog.version",
            ),
        ),
        migrations.AddIndex(
            model_name="price",
            index=models.Index(fields=["model", "version", "-effective_at"], name="price_in_force"),
        ),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.CheckConstraint(
                condition=models.Q(("cached_input_micro_usd_per_mtok__lte", models.F("input_micro_usd_per_mtok"))),
                name="price_cached_input_not_dearer",
            ),
        ),
        migrations.AddConstraint(
            model_name="price",
            constraint=models.CheckConstraint(
                condition=models.Q(("batch_bps__range", (100, 100000)), ("interactive_bps__range", (100, 100000))),
                name="price_multipliers_in_range",
            ),
        ),
        migrations.RunSQL(FORBID, ALLOW),
    ]
