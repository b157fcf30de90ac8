CREATE OR REPLACE FUNCTION catalog_write_search_text(p_models uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Title and slug weigh most, then tags, industry and organization, then the summary. Beginnings of words are looked for in
-- title and slug as they are written, without stems.
BEGIN
    -- The row is locked before its facts are read: a publication and a change of visibility at once both see the other.
    PERFORM FROM catalog_searchtext WHERE model_id = ANY (p_models) ORDER BY model_id FOR UPDATE;
    INSERT INTO catalog_searchtext AS kept (model_id, words, beginnings, names, listed, text_digest, passages_of)
        SELECT m.id,
            setweight(to_tsvector('english', extensions.unaccent(m.title || ' ' || m.slug)), 'A')
            || setweight(to_tsvector('english', extensions.unaccent(
                array_to_string(m.tags, ' ') || ' ' || m.industry || ' ' || o.slug)), 'B')
            || setweight(to_tsvector('english', extensions.unaccent(m.summary)), 'C'),
            to_tsvector('simple', extensions.unaccent(m.title || ' ' || m.slug)),
            lower(extensions.unaccent(concat_ws(' ', m.title, m.slug, o.name, o.slug, m.industry,
                array_to_string(m.tags, ' ')))),
            m.visibility = 'public' AND EXISTS (
                SELECT FROM catalog_version v WHERE v.model_id = m.id AND v.state = 'published'),
            md5(concat_ws(E'\n', m.title, m.summary, m.industry, m.tags::text, m.card_markdown)),
            ''
        FROM catalog_model m JOIN accounts_organization o ON o.id = m.organization_id WHERE m.id = ANY (p_models)
    ON CONFLICT (model_id) DO UPDATE SET
        words = excluded.words, beginnings = excluded.beginnings, names = excluded.names, listed = excluded.listed,
        text_digest = excluded.text_digest,
        passages_of = CASE WHEN excluded.listed THEN kept.passages_of ELSE '' END;
    DELETE FROM catalog_passage p USING catalog_searchtext s
        WHERE p.model_id = ANY (p_models) AND s.model_id = p.model_id AND NOT s.listed;
END $$;

CREATE FUNCTION catalog_version_findable() RETURNS trigger LANGUAGE plpgsql AS $$
-- A listing is found while a version of it is published.
BEGIN
    PERFORM catalog_write_search_text(ARRAY[NEW.model_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_version_found_first AFTER INSERT ON catalog_version
    FOR EACH ROW WHEN (NEW.state = 'published') EXECUTE FUNCTION catalog_version_findable();
CREATE TRIGGER catalog_version_findable AFTER UPDATE OF state ON catalog_version
    FOR EACH ROW WHEN ((OLD.state = 'published') IS DISTINCT FROM (NEW.state = 'published'))
    EXECUTE FUNCTION catalog_version_findable();

DROP TRIGGER catalog_organization_renamed ON accounts_organization;
CREATE TRIGGER catalog_organization_renamed AFTER UPDATE OF slug, name ON accounts_organization
    FOR EACH ROW WHEN ((OLD.slug, OLD.name) IS DISTINCT FROM (NEW.slug, NEW.name))
    EXECUTE FUNCTION catalog_organization_renamed();
SELECT catalog_write_search_text(ARRAY(SELECT id FROM catalog_model));
