"""The outbox holds what is told, and nothing else: no message of each settlement and correction, which nobody reads.

Back again, the functions write such messages; those that were deleted stay away.
"""

import re
from pathlib import Path

from django.db import migrations, models

SQL = Path(__file__).with_name("sql")
TOLD = ("top_up.credited", "top_up.failed", "payout.paid", "payout.returned")
_WRITING = re.compile(r"    INSERT INTO billing_outbox .*?;\n", re.DOTALL)


def earlier(file: str, name: str) -> str:
    """Return the text of a function that wrote a message."""
    text = re.search(rf"CREATE (?:OR REPLACE )?FUNCTION {name}\(.*?\nEND \$\$;\n", (SQL / file).read_text(), re.DOTALL)
    assert text is not None
    return re.sub(r"^CREATE (OR REPLACE )?", "CREATE OR REPLACE ", text[0])


BEFORE = [
    earlier("0025_settle.sql", "billing_settle_locked"),
    earlier("0029_borne_corrections.sql", "billing_correct_prediction"),
]
AFTER = [_WRITING.sub("", text) for text in BEFORE]
assert all(old != new and "billing_outbox" not in new for old, new in zip(BEFORE, AFTER, strict=True))


class Migration(migrations.Migration):
    dependencies = [("billing", "0035_one_person")]

    operations = [
        migrations.RunSQL("\n".join(AFTER), "\n".join(BEFORE)),
        migrations.RunSQL(f"DELETE FROM billing_outbox WHERE topic <> ALL (ARRAY{list(TOLD)})", migrations.RunSQL.noop),
        migrations.RemoveIndex("outbox", "billing_outbox_waiting"),
        migrations.RemoveIndex("outbox", "billing_outbox_delivered"),
        migrations.RemoveIndex("outbox", "billing_outbox_untold"),
        migrations.RemoveField("outbox", "delivered_at"),
        migrations.AddIndex(
            "outbox",
            models.Index(fields=["id"], condition=models.Q(announced_at=None), name="billing_outbox_untold"),
        ),
    ]
