"""Addresses of the pages."""

from django.urls import path, re_path

from marketplace.web.views import (
    budgets,
    creator,
    dashboard,
    data,
    keys,
    papers,
    payouts,
    public,
    receipts,
    staff,
    statements,
    wallet,
)

app_name = "web"
urlpatterns = [
    path("", public.landing, name="landing"),
    path("models/", public.catalogue, name="catalogue"),
    path("models/<slug:org>/<slug:slug>", public.model_page, name="model"),
    path("models/<slug:org>/<slug:slug>/price", public.price_calculator, name="price_calculator"),
    path("download/<str:name>", public.download, name="download"),
    path("playground/token", dashboard.playground_token, name="playground_token"),
    path("dashboard/", dashboard.home, name="dashboard"),
    path("dashboard/organization", dashboard.switch_organization, name="switch_organization"),
    path("dashboard/keys", keys.keys, name="keys"),
    path("dashboard/budgets", budgets.budgets, name="budgets"),
    path("dashboard/budgets/organization", budgets.limit_organization, name="limit_organization"),
    path("dashboard/budgets/<uuid:node_id>", budgets.budget, name="budget"),
    path("dashboard/webhooks", budgets.add_webhook, name="add_webhook"),
    path("dashboard/webhooks/<uuid:webhook_id>/delete", budgets.delete_webhook, name="delete_webhook"),
    path("dashboard/keys/<uuid:key_id>/revoke", keys.revoke_key, name="revoke_key"),
    path("dashboard/usage", dashboard.usage, name="usage"),
    path("dashboard/receipts/<uuid:prediction_id>", receipts.receipt, name="receipt"),
    path("dashboard/receipts/<uuid:prediction_id>.json", receipts.receipt_file, name="receipt_file"),
    path("receipts/", receipts.verify, name="verify_receipt"),
    path("dashboard/wallet", wallet.wallet, name="wallet"),
    path("dashboard/wallet/<uuid:top_up_id>/cancel", wallet.cancel, name="cancel_top_up"),
    path("dashboard/payouts", payouts.payouts, name="payouts"),
    path("dashboard/payouts/terms", payouts.terms, name="payout_terms"),
    path("dashboard/payouts/setup", payouts.setup, name="payout_setup"),
    path("dashboard/payouts/stripe", payouts.stripe_dashboard, name="payout_stripe"),
    path("dashboard/payouts/<uuid:payout_id>", payouts.payout, name="payout"),
    path("dashboard/payouts/<uuid:payout_id>.csv", payouts.payout_csv, name="payout_csv"),
    path("dashboard/statements", statements.statements, name="statements"),
    re_path(
        r"^dashboard/statements/(?P<month>20[0-9]{2}-[0-9]{2})\.csv$", statements.statement_csv, name="statement_csv"
    ),
    re_path(
        r"^dashboard/statements/(?P<month>20[0-9]{2}-[0-9]{2})\.pdf$", statements.statement_pdf, name="statement_pdf"
    ),
    path("dashboard/invoices", papers.papers, name="papers"),
    path("dashboard/billing-profile", papers.billing_profile, name="billing_profile"),
    re_path(
        r"^dashboard/invoices/(?P<paper_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(?P<extension>pdf|csv)$",
        papers.paper_file,
        name="paper_file",
    ),
    path("dashboard/data", data.data, name="data"),
    path("dashboard/data/account.json", data.copy_user, name="copy_user"),
    path("dashboard/data/organization.zip", data.copy_organization, name="copy_organization"),
    path("dashboard/data/delete-account", data.delete_user, name="delete_user"),
    path("dashboard/data/delete-organization", data.delete_organization, name="delete_organization"),
    path("dashboard/models", creator.my_models, name="my_models"),
    path("dashboard/models/<slug:slug>", creator.my_model, name="my_model"),
    path("dashboard/models/<slug:slug>/royalties", creator.royalties, name="royalties"),
    path("dashboard/models/<slug:slug>/custody", creator.custody, name="custody"),
    re_path(
        r"^dashboard/models/(?P<slug>[-a-z0-9]{1,40})/versions/(?P<number>[1-9][0-9]{0,8})/(?P<action>publish|retire|revoke)$",
        creator.change_version,
        name="change_version",
    ),
    path("dashboard/earnings", creator.earnings, name="earnings"),
    path("dashboard/custody.json", creator.custody_export, name="custody_export"),
    path("platform/", staff.platform, name="platform"),
    re_path(
        r"^platform/statements/(?P<month>20[0-9]{2}-[0-9]{2})\.(?P<extension>pdf|csv)$",
        staff.platform_statement_file,
        name="platform_statement",
    ),
]
