"""The words by which a listing is found, kept by triggers: a search computed them for every model."""

import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
from django.db import migrations, models

KEEP = """
CREATE FUNCTION catalog_write_search_text(p_models uuid[]) RETURNS void LANGUAGE sql AS $$
-- Title and slug weigh most, then tags, industry and organization, then the summary. Beginnings of words are looked for in
-- title and slug as they are written, without stems.
    INSERT INTO catalog_searchtext (model_id, words, beginnings)
        SELECT m.id,
            setweight(to_tsvector('english', m.title || ' ' || m.slug), 'A')
            || setweight(to_tsvector('english', array_to_string(m.tags, ' ') || ' ' || m.industry || ' ' || o.slug), 'B')
            || setweight(to_tsvector('english', m.summary), 'C'),
            to_tsvector('simple', m.title || ' ' || m.slug)
        FROM catalog_model m JOIN accounts_organization o ON o.id = m.organization_id WHERE m.id = ANY (p_models)
    ON CONFLICT (model_id) DO UPDATE SET words = excluded.words, beginnings = excluded.beginnings
$$;
CREATE FUNCTION catalog_model_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catalog_write_search_text(ARRAY(SELECT id FROM written));
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_model_added AFTER INSERT ON catalog_model REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION catalog_model_changed();
CREATE TRIGGER catalog_model_changed AFTER UPDATE ON catalog_model REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION catalog_model_changed();
CREATE FUNCTION catalog_organization_renamed() RETURNS trigger LANGUAGE plpgsql AS $$
-- A name that is erased is not found any more.
BEGIN
    PERFORM catalog_write_search_text(ARRAY(SELECT id FROM catalog_model WHERE organization_id = NEW.id));
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_organization_renamed AFTER UPDATE OF slug ON accounts_organization
    FOR EACH ROW WHEN (OLD.slug IS DISTINCT FROM NEW.slug) EXECUTE FUNCTION catalog_organization_renamed();
SELECT catalog_write_search_text(ARRAY(SELECT id FROM catalog_model));
"""
FORGET = """
DROP TRIGGER catalog_organization_renamed ON accounts_organization;
DROP TRIGGER catalog_model_changed ON catalog_model;
DROP TRIGGER catalog_model_added ON catalog_model;
DROP FUNCTION catalog_organization_renamed(), catalog_model_changed(), catalog_write_search_text(uuid[]);
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_referrals"), ("catalog", "0005_sources")]

    operations = [
        migrations.CreateModel(
            name="SearchText",
            fields=[
                (
                    "model",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="search_text",
                        serialize=False,
                        to="catalog.model",
                    ),
                ),
                ("words", django.contrib.postgres.search.SearchVectorField()),
                ("beginnings", django.contrib.postgres.search.SearchVectorField()),
            ],
            options={
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(fields=["words"], name="catalog_search_words"),
                    django.contrib.postgres.indexes.GinIndex(fields=["beginnings"], name="catalog_search_beginnings"),
                ],
            },
        ),
        migrations.RunSQL(KEEP, FORGET),
    ]
