CREATE OR REPLACE FUNCTION catalog_list_models(p_models uuid[]) RETURNS void LANGUAGE sql AS $$
-- A model is listed while it is public and has a published version. A version that was published once keeps its time, so
-- a listing that is taken off sale and put back is not new again. Price and accuracy are those of the default version
-- (`catalog.rollouts`), as `catalog.selectors` reads them; a call is one of 500 tokens in and 100 out in the class
-- standard, and of pico-dollars a thousand are a nano-dollar.
    DELETE FROM catalog_standing s WHERE s.model_id = ANY (p_models) AND NOT EXISTS (
        SELECT 1 FROM catalog_model m JOIN catalog_version v ON v.model_id = m.id AND v.state = 'published'
        WHERE m.id = s.model_id AND m.visibility = 'public');
    INSERT INTO catalog_standing (model_id, listed_at)
        SELECT m.id, coalesce((SELECT min(v.published_at) FROM catalog_version v WHERE v.model_id = m.id), now())
        FROM catalog_model m WHERE m.id = ANY (p_models) AND m.visibility = 'public'
            AND EXISTS (SELECT 1 FROM catalog_version v WHERE v.model_id = m.id AND v.state = 'published')
    ON CONFLICT DO NOTHING;
    UPDATE catalog_standing s SET (output_micro_usd_per_mtok, call_nano_usd, accuracy_bps)
            = (f.output, f.call, f.accuracy)
        FROM (SELECT l.model_id, p.output_micro_usd_per_mtok AS output,
                p.per_prediction_nano_usd
                    + (500 * p.input_micro_usd_per_mtok + 100 * p.output_micro_usd_per_mtok + 999) / 1000 AS call,
                10000::bigint * e.correct / e.rows AS accuracy
            FROM catalog_standing l
            JOIN catalog_model m ON m.id = l.model_id
            CROSS JOIN LATERAL (SELECT v.id FROM catalog_version v
                WHERE v.model_id = l.model_id AND v.state = 'published'
                ORDER BY (v.id = m.default_version_id) IS TRUE DESC, v.number DESC LIMIT 1) n
            LEFT JOIN LATERAL (SELECT * FROM catalog_price p
                WHERE p.model_id = l.model_id AND (p.version_id IS NULL OR p.version_id = n.id)
                    AND p.effective_at <= statement_timestamp()
                ORDER BY p.version_id IS NULL, p.effective_at DESC, p.id DESC LIMIT 1) p ON true
            LEFT JOIN LATERAL (SELECT * FROM (SELECT * FROM catalog_evaluation e
                WHERE e.version_id = n.id ORDER BY e.id DESC LIMIT 1) newest WHERE newest.rows >= 50) e ON true
            WHERE l.model_id = ANY (p_models)) f
        WHERE s.model_id = f.model_id AND (s.output_micro_usd_per_mtok, s.call_nano_usd, s.accuracy_bps)
            IS DISTINCT FROM (f.output, f.call, f.accuracy)
$$;

CREATE FUNCTION catalog_price_set() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catalog_list_models(ARRAY[NEW.model_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_price_set AFTER INSERT ON catalog_price FOR EACH ROW EXECUTE FUNCTION catalog_price_set();
CREATE FUNCTION catalog_version_measured() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catalog_list_models(ARRAY(SELECT model_id FROM catalog_version WHERE id = NEW.version_id));
    RETURN NULL;
END $$;
CREATE TRIGGER catalog_version_measured AFTER INSERT ON catalog_evaluation
    FOR EACH ROW EXECUTE FUNCTION catalog_version_measured();
DROP TRIGGER catalog_model_shown ON catalog_model;
CREATE TRIGGER catalog_model_shown AFTER UPDATE OF visibility, default_version_id ON catalog_model
    FOR EACH ROW
    WHEN (OLD.visibility <> NEW.visibility OR OLD.default_version_id IS DISTINCT FROM NEW.default_version_id)
    EXECUTE FUNCTION catalog_model_shown();
SELECT catalog_list_models(ARRAY(SELECT id FROM catalog_model));
