"""A model may have several sources, of which it was blended; a derived model has one. The declaration stands."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

MOVE = """
INSERT INTO catalog_source (model_id, upstream_id, royalty_bps, place, count)
    SELECT id, derived_from_id, royalty_bps, 1, 1 FROM catalog_model WHERE derived_from_id IS NOT NULL;
DROP TRIGGER catalog_keep_derivation ON catalog_model;
DROP FUNCTION catalog_keep_derivation();
"""
MOVE_BACK = """
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM catalog_source WHERE count > 1) THEN
        RAISE EXCEPTION 'a blend has several sources, of which one column would lose all but one';
    END IF;
END $$;
UPDATE catalog_model m SET derived_from_id = s.upstream_id, royalty_bps = s.royalty_bps
    FROM catalog_source s WHERE s.model_id = m.id;
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
GUARD = """
CREATE FUNCTION catalog_source_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'what a model is derived from stands once it is declared'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    -- The places of a declaration are 1 to `count`: when all are taken, none can join.
    IF EXISTS (SELECT 1 FROM catalog_source WHERE model_id = NEW.model_id AND count <> NEW.count) THEN
        RAISE EXCEPTION 'the sources of a model are declared together' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.royalty_bps + (SELECT coalesce(sum(royalty_bps), 0) FROM catalog_source WHERE model_id = NEW.model_id) > 10000 THEN
        RAISE EXCEPTION 'the royalties of a model are more than all it earns' USING ERRCODE = 'check_violation';
    END IF;
    -- A model that others derive from never gets one above it, so that no circle closes.
    IF EXISTS (SELECT 1 FROM catalog_source WHERE upstream_id = NEW.model_id) THEN
        RAISE EXCEPTION 'others derive from this model already' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER catalog_source_guard BEFORE INSERT OR UPDATE OR DELETE ON catalog_source
    FOR EACH ROW EXECUTE FUNCTION catalog_source_guard();
"""
UNGUARD = """
DROP TRIGGER catalog_source_guard ON catalog_source;
DROP FUNCTION catalog_source_guard();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0004_derivation"),
    ]

    operations = [
        migrations.CreateModel(
            name="Source",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "royalty_bps",
                    models.PositiveIntegerField(validators=[django.core.validators.MaxValueValidator(10000)]),
                ),
                ("place", models.PositiveSmallIntegerField()),
                ("count", models.PositiveSmallIntegerField()),
                (
                    "model",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sources",
                        to="catalog.model",
                    ),
                ),
                (
                    "upstream",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="derivatives", to="catalog.model"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("model", "place"), name="source_place_unique"),
                    models.UniqueConstraint(fields=("model", "upstream"), name="source_named_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("model", models.F("upstream")), _negated=True),
                            ("count__lte", 8),
                            ("place__gte", 1),
                            ("place__lte", models.F("count")),
                            ("royalty_bps__lte", 10000),
                        ),
                        name="source_fits",
                    ),
                ],
            },
        ),
        migrations.RunSQL(MOVE, MOVE_BACK),
        migrations.RunSQL(GUARD, UNGUARD),
        migrations.RemoveConstraint(model_name="model", name="model_royalty_fits"),
        migrations.RemoveField(model_name="model", name="derived_from"),
        migrations.RemoveField(model_name="model", name="royalty_bps"),
        migrations.AddConstraint(
            model_name="model",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("derivative_royalty_bps__isnull", True),
                    ("derivative_royalty_bps__lte", 10000),
                    _connector="OR",
                ),
                name="model_royalty_fits",
            ),
        ),
    ]
