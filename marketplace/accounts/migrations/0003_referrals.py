"""An organization may have been brought by another one, which earns on it for a while."""

import django.db.models.deletion
from django.db import migrations, models

KEEP = """
CREATE FUNCTION accounts_keep_referral() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a referral is told when an organization is made, and stands'
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER accounts_keep_referral BEFORE UPDATE ON accounts_organization FOR EACH ROW
    WHEN ((OLD.referred_by_id, OLD.referral_ends_at) IS DISTINCT FROM (NEW.referred_by_id, NEW.referral_ends_at))
    EXECUTE FUNCTION accounts_keep_referral();
"""
FORGET = """
DROP TRIGGER accounts_keep_referral ON accounts_organization;
DROP FUNCTION accounts_keep_referral();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_key_lines"),
    ]

    operations = [
        migrations.AddField(
            model_name="organization",
            name="referral_ends_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="organization",
            name="referred_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="referrals",
                to="accounts.organization",
            ),
        ),
        migrations.AddConstraint(
            model_name="organization",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("referral_ends_at__isnull", True), ("referred_by__isnull", True)),
                    models.Q(("referral_ends_at__isnull", False), ("referred_by__isnull", False)),
                    _connector="OR",
                ),
                name="organization_referral_has_an_end",
            ),
        ),
        migrations.RunSQL(KEEP, FORGET),
    ]
