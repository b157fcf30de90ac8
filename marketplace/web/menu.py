"""The pages within each entry of the menus: while one of them is shown, its entry is marked."""

from __future__ import annotations

WITHIN: dict[str, tuple[str, ...]] = {
    "web:trials": ("web:trial",),
    "web:batches": ("web:batch", "web:batch_file"),
    "web:runs": ("web:run",),
    "web:keys": ("web:key",),
    "web:webhooks": ("web:webhook",),
    "web:budgets": ("web:budget",),
    "web:usage": ("web:receipt",),
    "web:wallet": ("web:top_up", "web:auto_top_up"),
    "web:papers": ("web:billing_profile",),
    "web:my_models": (
        "web:my_model",
        "web:custody",
        "web:in_use",
        "web:version",
        "web:listing",
        "web:new_listing",
        "web:access_requests",
        "web:protection",
    ),
    "web:payouts": ("web:payout",),
    "web:organization": ("web:new_organization",),
    "web:security": ("account_email", "account_change_password"),
    "web:capacity": ("web:capacity_plan", "web:capacity_files"),
    "web:reviews": ("web:review",),
    "web:staff_organizations": ("web:staff_organization",),
    "web:staff_refunds": ("web:give_refund",),
    "web:disputes": ("web:dispute",),
    "web:features": ("web:switch_feature",),
}
