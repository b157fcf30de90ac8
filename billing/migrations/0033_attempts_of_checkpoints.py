"""Another attempt of a prediction may be on another checkpoint: its base moves with the replica.

Gateways of the release before call `billing_next_attempt` without one, and their attempts keep theirs.
"""

from pathlib import Path

from django.db import migrations

_RULES = (Path(__file__).with_name("sql") / "0030_runs.sql").read_text()
_BEGIN, _END = "CREATE OR REPLACE FUNCTION billing_guard_hold()", "END $$;\n"
_OLD_GUARD = _RULES[_RULES.index(_BEGIN) : _RULES.index(_END, _RULES.index(_BEGIN)) + len(_END)]
_NEW_GUARD = (
    _OLD_GUARD.replace("NEW.adapter, NEW.base, NEW.max", "NEW.adapter, NEW.max")
    .replace("OLD.adapter, OLD.base, OLD.max", "OLD.adapter, OLD.max")
    .replace(
        "(NEW.attempt, NEW.replica_id) IS DISTINCT FROM (OLD.attempt, OLD.replica_id)",
        "(NEW.attempt, NEW.replica_id, NEW.base) IS DISTINCT FROM (OLD.attempt, OLD.replica_id, OLD.base)",
    )
)
_MOVE = """
DROP FUNCTION billing_next_attempt(uuid, integer, uuid{before});
CREATE FUNCTION billing_next_attempt(p_id uuid, p_attempt integer, p_replica uuid{parameter}) RETURNS boolean
LANGUAGE plpgsql AS $$
-- Gives the prediction to another replica{comment}. True before the new one may be asked; false if the hold is closed,
-- has a verdict, or is at another attempt.
BEGIN
    UPDATE billing_hold SET attempt = attempt + 1, replica_id = p_replica{base}, dispatched_at = now()
        WHERE id = p_id AND state = 'open' AND attempt = p_attempt AND delivered_tokens IS NULL;
    RETURN FOUND;
END $$;
"""
APPLY = _NEW_GUARD + _MOVE.format(
    before="",
    parameter=", p_base text DEFAULT NULL",
    comment=", which may serve another checkpoint",
    base=", base = coalesce(p_base, base)",
)
UNDO = _OLD_GUARD + _MOVE.format(before=", text", parameter="", comment="", base="")


class Migration(migrations.Migration):
    dependencies = [("billing", "0032_earnings_of_models")]

    operations = [migrations.RunSQL(APPLY, UNDO)]
