"""The standing of each listed model: a row that triggers add and take away, and that a task fills."""

import django.db.models.deletion
import django.db.models.functions.datetime
import django.db.models.functions.text
from django.db import migrations, models

KEEP = """
CREATE FUNCTION catalog_list_models(p_models uuid[]) RETURNS void LANGUAGE sql AS $$
-- A model is listed while it is public and has a published version. A version that was published once keeps its time, so
-- a listing that is taken off sale and put back is not new again.
    DELETE FROM catalog_standing s WHERE s.model_id = ANY (p_models) AND NOT EXISTS (
        SELECT 1 FROM catalog_model m JOIN catalog_version v ON v.model_id = m.id AND v.state = 'published'
        WHERE m.id = s.model_id AND m.visibility = 'public');
    INSERT INTO catalog_standing (model_id, listed_at)
        SELECT m.id, coalesce((SELECT min(v.published_at) FROM catalog_version v WHERE v.model_id = m.id), now())
        FROM catalog_model m WHERE m.id = ANY (p_models) AND m.visibility = 'public'
            AND EXISTS (SELECT 1 FROM catalog_version v WHERE v.model_id = m.id AND v.state = 'published')
    ON CONFLICT DO NOTHING
$$;
CREATE FUNCTION catalog_version_offered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catalog_list_models(ARRAY[CASE TG_OP WHEN 'DELETE' THEN OLD.model_id ELSE NEW.model_id END]);
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_version_added AFTER INSERT ON catalog_version
    FOR EACH ROW WHEN (NEW.state = 'published') EXECUTE FUNCTION catalog_version_offered();
CREATE TRIGGER catalog_version_moved AFTER UPDATE OF state ON catalog_version
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND 'published' IN (OLD.state, NEW.state))
    EXECUTE FUNCTION catalog_version_offered();
CREATE TRIGGER catalog_version_deleted AFTER DELETE ON catalog_version
    FOR EACH ROW WHEN (OLD.state = 'published') EXECUTE FUNCTION catalog_version_offered();
CREATE FUNCTION catalog_model_shown() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catalog_list_models(ARRAY[NEW.id]);
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_model_shown AFTER UPDATE OF visibility ON catalog_model
    FOR EACH ROW WHEN (OLD.visibility <> NEW.visibility) EXECUTE FUNCTION catalog_model_shown();
SELECT catalog_list_models(ARRAY(SELECT id FROM catalog_model));
"""
FORGET = """
DROP TRIGGER catalog_model_shown ON catalog_model;
DROP TRIGGER catalog_version_added ON catalog_version;
DROP TRIGGER catalog_version_moved ON catalog_version;
DROP TRIGGER catalog_version_deleted ON catalog_version;
DROP FUNCTION catalog_model_shown(), catalog_version_offered(), catalog_list_models(uuid[]);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0009_evaluations"),
    ]

    operations = [
        migrations.CreateModel(
            name="Standing",
            fields=[
                (
                    "model",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="standing",
                        serialize=False,
                        to="catalog.model",
                    ),
                ),
                ("place", models.PositiveIntegerField(db_default=2147483647, default=2147483647)),
                ("score", models.FloatField(db_default=43.0, default=43.0)),
                ("quality_low", models.FloatField(null=True)),
                ("quality_rows", models.PositiveIntegerField(null=True)),
                ("served", models.BigIntegerField(db_default=0, default=0)),
                ("lost", models.BigIntegerField(db_default=0, default=0)),
                ("payers", models.PositiveIntegerField(db_default=0, default=0)),
                ("weeks", models.PositiveIntegerField(db_default=0, default=0)),
                ("shelf", models.PositiveSmallIntegerField(null=True)),
                ("listed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "indexes": [
                    models.Index(fields=["place", "model"], name="catalog_standing_place"),
                    models.Index(
                        condition=models.Q(("shelf__isnull", False)), fields=["shelf"], name="catalog_standing_shelf"
                    ),
                ],
            },
        ),
        migrations.AddIndex(
            model_name="model",
            index=models.Index(django.db.models.functions.text.Upper("industry"), name="catalog_model_industry"),
        ),
        migrations.RunSQL(KEEP, FORGET),
    ]
