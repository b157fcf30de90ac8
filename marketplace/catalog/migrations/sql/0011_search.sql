CREATE OR REPLACE FUNCTION catalog_write_search_text(p_models uuid[]) RETURNS void LANGUAGE plpgsql AS $$
-- Title and slug weigh most, then tags, industry and organization, then the summary. Beginnings of words and typing errors
-- are looked for among the words as they are written, without stems.
BEGIN
    -- The row is locked before its facts are read: a publication and a change of visibility at once both see the other.
    PERFORM FROM catalog_searchtext WHERE model_id = ANY (p_models) ORDER BY model_id FOR UPDATE;
    INSERT INTO catalog_searchtext AS kept (model_id, words, beginnings, listed, text_digest, passages_of)
        SELECT m.id,
            setweight(to_tsvector('english', heavy), 'A') || setweight(to_tsvector('english', middle), 'B')
            || setweight(to_tsvector('english', light), 'C'),
            setweight(to_tsvector('simple', heavy), 'A') || setweight(to_tsvector('simple', middle), 'B')
            || setweight(to_tsvector('simple', light), 'C'),
            m.visibility = 'public' AND EXISTS (
                SELECT FROM catalog_version v WHERE v.model_id = m.id AND v.state = 'published'),
            md5(concat_ws(E'\n', m.title, m.summary, m.industry, m.tags::text, m.card_markdown)),
            ''
        FROM catalog_model m JOIN accounts_organization o ON o.id = m.organization_id CROSS JOIN LATERAL (
            SELECT extensions.unaccent(m.title || ' ' || m.slug) AS heavy,
                extensions.unaccent(concat_ws(' ', array_to_string(m.tags, ' '), m.industry, o.slug, o.name)) AS middle,
                extensions.unaccent(m.summary) AS light) texts
        WHERE m.id = ANY (p_models)
    ON CONFLICT (model_id) DO UPDATE SET
        words = excluded.words, beginnings = excluded.beginnings, listed = excluded.listed,
        text_digest = excluded.text_digest,
        passages_of = CASE WHEN excluded.listed THEN kept.passages_of ELSE '' END;
    INSERT INTO catalog_spelling (word)
        SELECT DISTINCT word FROM catalog_searchtext, unnest(tsvector_to_array(beginnings)) AS word
        WHERE model_id = ANY (p_models) AND listed AND word ~ '^[[:alpha:]][[:alnum:]]{2,39}$' ORDER BY word
    ON CONFLICT DO NOTHING;
    DELETE FROM catalog_passage p USING catalog_searchtext s
        WHERE p.model_id = ANY (p_models) AND s.model_id = p.model_id AND NOT s.listed;
END $$;

-- A listing is found while a version of it is published.
CREATE FUNCTION catalog_versions_found() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catalog_write_search_text(ARRAY(SELECT DISTINCT model_id FROM written WHERE state = 'published'));
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_versions_found AFTER INSERT ON catalog_version REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION catalog_versions_found();
CREATE FUNCTION catalog_version_found() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catalog_write_search_text(ARRAY[NEW.model_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_version_found AFTER UPDATE OF state ON catalog_version
    FOR EACH ROW WHEN ((OLD.state = 'published') IS DISTINCT FROM (NEW.state = 'published'))
    EXECUTE FUNCTION catalog_version_found();

DROP TRIGGER catalog_organization_renamed ON accounts_organization;
CREATE TRIGGER catalog_organization_renamed AFTER UPDATE OF slug, name ON accounts_organization
    FOR EACH ROW WHEN ((OLD.slug, OLD.name) IS DISTINCT FROM (NEW.slug, NEW.name))
    EXECUTE FUNCTION catalog_organization_renamed();
SELECT catalog_write_search_text(ARRAY(SELECT id FROM catalog_model));
