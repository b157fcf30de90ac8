"""Daily trees of receipts. Segments only grow at their end, heads never change."""

from django.db import migrations, models
from django.db.models.functions import Now

RULES = """
CREATE FUNCTION receipts_check_segment() RETURNS trigger LANGUAGE plpgsql AS $$
-- Leaves keep their places: a segment may gain leaves behind those that it has, up to 1,024.
BEGIN
    IF length(NEW.hashes) % 32 <> 0 OR length(NEW.hashes) NOT BETWEEN 32 AND 32 * 1024
       OR length(NEW.ids) * 2 <> length(NEW.hashes) OR length(NEW.root) <> 32 THEN
        RAISE EXCEPTION 'segment % of % is malformed', NEW.number, NEW.day
            USING ERRCODE = 'check_violation', CONSTRAINT = 'receipts_segment_fits';
    END IF;
    IF TG_OP = 'UPDATE' AND ((NEW.day, NEW.number) <> (OLD.day, OLD.number)
       OR substring(NEW.hashes FOR length(OLD.hashes)) <> OLD.hashes
       OR substring(NEW.ids FOR length(OLD.ids)) <> OLD.ids) THEN
        RAISE EXCEPTION 'segment % of % may only grow', OLD.number, OLD.day
            USING ERRCODE = 'check_violation', CONSTRAINT = 'receipts_segment_grows';
    END IF;
    IF TG_OP = 'INSERT' AND NEW.number > 0 AND NOT EXISTS (
        SELECT 1 FROM receipts_segment WHERE day = NEW.day AND number = NEW.number - 1
            AND length(hashes) = 32 * 1024
    ) THEN
        RAISE EXCEPTION 'segment % of % has no full one before it', NEW.number, NEW.day
            USING ERRCODE = 'check_violation', CONSTRAINT = 'receipts_segment_follows';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION receipts_check_head() RETURNS trigger LANGUAGE plpgsql AS $$
-- Heads are numbered without a gap, and a later head of a day covers more leaves than an earlier one.
BEGIN
    IF NEW.sequence <> (SELECT coalesce(max(sequence), 0) + 1 FROM receipts_head)
       OR EXISTS (SELECT 1 FROM receipts_head WHERE day = NEW.day AND size >= NEW.size) THEN
        RAISE EXCEPTION 'head % of % does not continue the heads before it', NEW.sequence, NEW.day
            USING ERRCODE = 'check_violation', CONSTRAINT = 'receipts_head_continues';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER receipts_segment_grows BEFORE INSERT OR UPDATE ON receipts_segment
    FOR EACH ROW EXECUTE FUNCTION receipts_check_segment();
CREATE TRIGGER receipts_segment_stays BEFORE DELETE ON receipts_segment
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER receipts_segment_no_truncate BEFORE TRUNCATE ON receipts_segment
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER receipts_head_continues BEFORE INSERT ON receipts_head
    FOR EACH ROW EXECUTE FUNCTION receipts_check_head();
CREATE TRIGGER receipts_head_append_only BEFORE UPDATE OR DELETE ON receipts_head
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER receipts_head_no_truncate BEFORE TRUNCATE ON receipts_head
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""
NO_RULES = """
DROP TRIGGER receipts_segment_grows ON receipts_segment;
DROP TRIGGER receipts_segment_stays ON receipts_segment;
DROP TRIGGER receipts_segment_no_truncate ON receipts_segment;
DROP TRIGGER receipts_head_continues ON receipts_head;
DROP TRIGGER receipts_head_append_only ON receipts_head;
DROP TRIGGER receipts_head_no_truncate ON receipts_head;
DROP FUNCTION receipts_check_segment();
DROP FUNCTION receipts_check_head();
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = [("billing", "0003_ledger_rules")]  # billing_refuse_change
    operations = [
        migrations.CreateModel(
            name="Day",
            fields=[
                ("day", models.DateField(primary_key=True, serialize=False)),
                ("leaves", models.BigIntegerField(default=0)),
                ("charges", models.BigIntegerField(default=0)),
                ("read_to", models.DateTimeField(null=True)),
                ("read_to_id", models.UUIDField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Segment",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "day", "number", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("day", models.DateField()),
                ("number", models.IntegerField()),
                ("ids", models.BinaryField()),
                ("hashes", models.BinaryField()),
                ("root", models.BinaryField(max_length=32)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Head",
            fields=[
                ("sequence", models.BigIntegerField(primary_key=True, serialize=False)),
                ("day", models.DateField()),
                ("size", models.BigIntegerField()),
                ("statement", models.TextField()),
                ("hash", models.BinaryField(max_length=32)),
                ("published_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("day", "size"), name="receipts_head_grows")],
            },
        ),
        migrations.RunSQL(RULES, NO_RULES),
    ]
