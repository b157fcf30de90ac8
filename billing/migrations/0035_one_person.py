"""Free amounts are a person's, however many organizations it makes; a refused call counts nowhere."""

from pathlib import Path

from django.db import migrations

_SQL = Path(__file__).with_name("sql")


def _function(file: str, name: str) -> str:
    """Return the definition of a function in one of the files."""
    text = (_SQL / file).read_text()
    begin = text.index(f"FUNCTION {name}(")
    body = text[begin : text.index("END $$;\n", begin) + len("END $$;\n")]
    return f"CREATE OR REPLACE {body}"


_OLD_PLACE = _function("0030_runs.sql", "billing_place_holds")
_NEW_PLACE = (
    _OLD_PLACE.replace(
        "    PERFORM billing_lock_wallets(owners);\n",
        """    lockers := owners;
    IF for_nothing THEN  -- what is free is free once for all that belong together, so their holds wait for each other, too
        lockers := ARRAY(SELECT DISTINCT k FROM unnest(items) i CROSS JOIN LATERAL unnest(billing_kin(i.organization_id)) AS k
            WHERE coalesce(i.monthly_free, 0) + coalesce(i.introductory_free, 0) > 0 UNION SELECT unnest(owners));
    END IF;
    PERFORM billing_lock_wallets(lockers);
""",
    )
    .replace(
        "    owners uuid[];\n",
        "    owners uuid[];\n    lockers uuid[];  -- the owners, and the kin of those that may get free amounts\n    kin uuid[];\n",
    )
    .replace(
        "            allowances[1] := billing_free_rest(item, ",
        "            kin := billing_kin(item.organization_id);\n            allowances[1] := billing_free_rest(item, kin, ",
    )
    .replace("allowances[2] := billing_free_rest(item, ", "allowances[2] := billing_free_rest(item, kin, ")
)
APPLY = (
    (_SQL / "0035_one_person.sql").read_text()
    + _NEW_PLACE
    + """
DROP FUNCTION billing_free_rest(billing_hold_item, text, date, bigint, bigint);
"""
)
UNDO = (
    _function("0020_place.sql", "billing_free_rest")
    + _OLD_PLACE
    + _function("0022_kept_answers.sql", "billing_earlier_hold")
    + _function("0020_settle.sql", "billing_release_holds")
    + """
DROP FUNCTION billing_free_rest(billing_hold_item, uuid[], text, date, bigint, bigint);
DROP FUNCTION billing_kin(uuid);
DROP FUNCTION billing_tied(uuid);
DROP INDEX billing_user_mailbox;
"""
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0034_sealed_rows")]

    operations = [migrations.RunSQL(APPLY, UNDO)]
