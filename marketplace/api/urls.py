"""Addresses below /api/v1/. None ends in a slash."""

from datetime import date
from uuid import UUID

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from billing.budgets.runs.records import PREFIX
from marketplace.api.views import (
    access,
    alerts,
    audit,
    budgets,
    cards,
    clearances,
    custody,
    disputes,
    eval_sets,
    evals,
    features,
    fleet,
    guards,
    identity,
    in_use,
    incidents,
    keys,
    logos,
    members,
    model_guards,
    models,
    money,
    organizations,
    oversight,
    papers,
    payouts,
    plans,
    promises,
    prompts,
    protection,
    receipts,
    refunds,
    reviews,
    rollouts,
    runs,
    schema,
    sessions,
    statements,
    status,
    trials,
    usage,
    versions,
    webhooks,
)
from marketplace.api.views.base import UnknownPath
from protocol.names import REPLICA_NAME, SLUG


class NameConverter(StringConverter):
    """The name of an organization or a model; what cannot be one never reaches the database."""

    regex = SLUG


class DayConverter:
    """A day as YYYY-MM-DD; another text is no such address."""

    regex = "20[0-9]{2}-[0-9]{2}-[0-9]{2}"

    def to_python(self, value: str) -> date:
        """Return the day; ValueError, which Django takes as no match, if the calendar has none."""
        return date.fromisoformat(value)

    def to_url(self, value: date) -> str:
        """Return the day's text."""
        return value.isoformat()


class DisputeConverter(StringConverter):
    """Stripe's id of a dispute."""

    regex = "[a-z]{2,8}_[A-Za-z0-9_]{1,200}"


class RunConverter:
    """A run's id as the header X-Intarsia-Run has it."""

    regex = "run_[0-9a-f]{32}"

    def to_python(self, value: str) -> UUID:
        """Return the id of its node."""
        return UUID(hex=value.removeprefix(PREFIX))

    def to_url(self, value: UUID) -> str:
        """Return the run's text."""
        return PREFIX + value.hex


register_converter(RunConverter, "run")


class ReplicaConverter(StringConverter):
    """The name of a replica."""

    regex = REPLICA_NAME


register_converter(ReplicaConverter, "replica")
register_converter(DisputeConverter, "dispute")
register_converter(NameConverter, "name")
register_converter(DayConverter, "day")

app_name = "api"
urlpatterns = [
    path("tokens", identity.CreateTokenView.as_view(), name="tokens"),
    path("me", identity.MeView.as_view(), name="me"),
    path("organizations", identity.OrganizationsView.as_view(), name="organizations"),
    path("organizations/<name:org>/signing-keys", keys.SigningKeysView.as_view(), name="signing-keys"),
    path("organizations/<name:org>", organizations.OrganizationView.as_view(), name="organization"),
    path("organizations/<name:org>/logo", organizations.LogoView.as_view(), name="logo"),
    path("organizations/<name:org>/members", members.MembersView.as_view(), name="members"),
    path("organizations/<name:org>/members/<uuid:user_id>", members.MemberView.as_view(), name="member"),
    path("organizations/<name:org>/invites", members.InvitesView.as_view(), name="invites"),
    path("organizations/<name:org>/invites/<uuid:invite_id>", members.InviteView.as_view(), name="invite"),
    path(
        "organizations/<name:org>/invites/<uuid:invite_id>/resend",
        members.ResendInviteView.as_view(),
        name="resend-invite",
    ),
    path("organizations/<name:org>/transfer", organizations.TransferView.as_view(), name="transfer"),
    path(
        "organizations/<name:org>/transfer/accept", organizations.AcceptTransferView.as_view(), name="accept-transfer"
    ),
    path("organizations/<name:org>/leave", organizations.LeaveView.as_view(), name="leave"),
    path("invites/accept", members.AcceptInviteView.as_view(), name="accept-invite"),
    path("audit", audit.AuditView.as_view(), name="audit"),
    path("audit/export", audit.AuditExportView.as_view(), name="audit-export"),
    path("audit/seals", audit.SealsView.as_view(), name="audit-seals"),
    path("platform/audit", audit.PlatformAuditView.as_view(), name="platform-audit"),
    path("organizations/<name:org>/second-factor", identity.SecondFactorView.as_view(), name="second-factor"),
    path("sessions", sessions.SessionsView.as_view(), name="sessions"),
    path("sessions/<int:session_id>", sessions.SessionView.as_view(), name="session"),
    path("keys", keys.KeysView.as_view(), name="keys"),
    path("keys/<uuid:key_id>", keys.OneKeyView.as_view(), name="key"),
    path("keys/<uuid:key_id>/budget", budgets.KeyBudgetView.as_view(), name="key-budget"),
    path("keys/<uuid:key_id>/guards", guards.KeyGuardsView.as_view(), name="key-guards"),
    path("budgets", budgets.BudgetsView.as_view(), name="budgets"),
    path("budgets/alerts", budgets.AlertsView.as_view(), name="budget-alerts"),
    path("budgets/organization", budgets.OrganizationBudgetView.as_view(), name="organization-budget"),
    path("budgets/<uuid:node_id>", budgets.OneBudgetView.as_view(), name="budget"),
    path("budgets/<uuid:node_id>/end-users", budgets.EndUsersView.as_view(), name="end-users"),
    path("alerts", alerts.AlertsView.as_view(), name="alerts"),
    path("alerts/kinds", alerts.AlertKindsView.as_view(), name="alert-kinds"),
    path("alerts/kinds/<str:kind>", alerts.AlertKindView.as_view(), name="alert-kind"),
    path("webhooks", webhooks.WebhooksView.as_view(), name="webhooks"),
    path("webhooks/<uuid:webhook_id>", webhooks.WebhookView.as_view(), name="webhook"),
    path("webhooks/<uuid:webhook_id>/rotate-secret", webhooks.RotateSecretView.as_view(), name="rotate-secret"),
    path("webhooks/<uuid:webhook_id>/test", webhooks.TestWebhookView.as_view(), name="test-webhook"),
    path("webhook-deliveries", webhooks.DeliveriesView.as_view(), name="webhook-deliveries"),
    path("webhook-deliveries/<int:delivery_id>", webhooks.DeliveryView.as_view(), name="webhook-delivery"),
    path("webhook-deliveries/<int:delivery_id>/replay", webhooks.ReplayView.as_view(), name="replay-delivery"),
    path("keys/<uuid:key_id>/rotate", keys.RotateKeyView.as_view(), name="rotate-key"),
    path("bases", models.BasesView.as_view(), name="bases"),
    path("models", models.ModelsView.as_view(), name="models"),
    path("models/<name:org>/<name:slug>", models.ModelView.as_view(), name="model"),
    path("models/<name:org>/<name:slug>/guards", guards.ModelGuardsView.as_view(), name="model-guards"),
    path("models/<name:org>/<name:slug>/prices", models.PricesView.as_view(), name="prices"),
    path("models/<name:org>/<name:slug>/in-use", in_use.InUseView.as_view(), name="in-use"),
    path("models/<name:org>/<name:slug>/rollout", rollouts.ModelRolloutView.as_view(), name="model-rollout"),
    path("models/<name:org>/<name:slug>/alarms", in_use.AlarmsView.as_view(), name="alarms"),
    path("models/<name:org>/<name:slug>/precisions", clearances.PrecisionsView.as_view(), name="precisions"),
    path("models/<name:org>/<name:slug>/evaluations", evals.EvaluationsView.as_view(), name="evaluations"),
    path("models/<name:org>/<name:slug>/eval-sets", eval_sets.SetsView.as_view(), name="eval-sets"),
    path("models/<name:org>/<name:slug>/guard", model_guards.ModelGuardView.as_view(), name="model-guard"),
    path("models/<name:org>/<name:slug>/eval-runs", evals.ModelRunsView.as_view(), name="eval-runs"),
    path("eval-sets/<uuid:set_id>", eval_sets.SetView.as_view(), name="eval-set"),
    path("eval-sets/<uuid:set_id>/package", eval_sets.SetPackageView.as_view(), name="eval-set-package"),
    path("eval-sets/<uuid:set_id>/complete", eval_sets.CompleteSetView.as_view(), name="complete-eval-set"),
    path("eval-sets/<uuid:set_id>/quote", evals.RunQuoteView.as_view(), name="quote-eval-run"),
    path("eval-sets/<uuid:set_id>/runs", evals.SetRunsView.as_view(), name="start-eval-run"),
    path("eval-runs/<uuid:run_id>", evals.RunView.as_view(), name="eval-run"),
    path("evaluations/<uuid:run_id>/calls", evals.EvaluationCallsView.as_view(), name="evaluation-calls"),
    path(
        "evaluations/<uuid:run_id>/receipts/<uuid:prediction_id>",
        evals.EvaluationReceiptView.as_view(),
        name="evaluation-receipt",
    ),
    path("models/<name:org>/<name:slug>/logo", logos.LogoView.as_view(), name="model-logo"),
    path("models/<name:org>/<name:slug>/admission", access.AdmissionView.as_view(), name="admission"),
    path(
        "models/<name:org>/<name:slug>/licence-acceptance",
        access.LicenceAcceptanceView.as_view(),
        name="licence-acceptance",
    ),
    path("models/<name:org>/<name:slug>/access-request", access.AccessRequestView.as_view(), name="access-request"),
    path("models/<name:org>/<name:slug>/access-requests", access.AccessRequestsView.as_view(), name="access-requests"),
    path("access-requests/<uuid:request_id>", access.AnswerAccessRequestView.as_view(), name="answer-access-request"),
    path("models/<name:org>/<name:slug>/promises", promises.PromisesView.as_view(), name="promises"),
    path("models/<name:org>/<name:slug>/versions", versions.VersionsView.as_view(), name="versions"),
    path("models/<name:org>/<name:slug>/reviews", reviews.ReviewsView.as_view(), name="reviews"),
    path("models/<name:org>/<name:slug>/reports", reviews.ReportsView.as_view(), name="reports"),
    path("reviews/<uuid:review_id>/appeal", reviews.AppealView.as_view(), name="appeal"),
    path("models/<name:org>/<name:slug>/protection", protection.ProtectionView.as_view(), name="protection"),
    path("models/<name:org>/<name:slug>/customers", protection.NotedCustomersView.as_view(), name="noted-customers"),
    path(
        "models/<name:org>/<name:slug>/customers/<int:customer_id>",
        protection.NotedCustomerView.as_view(),
        name="noted-customer",
    ),
    path("models/<name:org>/<name:slug>/more-calls", protection.MoreCallsView.as_view(), name="more-calls"),
    path("models/<name:org>/<name:slug>/custody", custody.CustodyView.as_view(), name="custody"),
    path("versions/<uuid:version_id>", versions.VersionView.as_view(), name="version"),
    path("versions/<uuid:version_id>/package", versions.PackageView.as_view(), name="package"),
    path("versions/<uuid:version_id>/complete", versions.CompleteVersionView.as_view(), name="complete"),
    path("versions/<uuid:version_id>/publish", versions.PublishVersionView.as_view(), name="publish"),
    path("versions/<uuid:version_id>/retire", versions.RetireVersionView.as_view(), name="retire"),
    path("versions/<uuid:version_id>/revoke", versions.RevokeVersionView.as_view(), name="revoke"),
    path("versions/<uuid:version_id>/rollout", rollouts.RolloutView.as_view(), name="rollout"),
    path("versions/<uuid:version_id>/make-default", rollouts.MakeDefaultView.as_view(), name="make-default"),
    path("versions/<uuid:version_id>/leave", clearances.LeaveView.as_view(), name="leave-on-checkpoint"),
    path("versions/<uuid:version_id>/deprecate", rollouts.DeprecateView.as_view(), name="deprecate"),
    path("versions/<uuid:version_id>/holders", custody.HoldersView.as_view(), name="holders"),
    path("custody", custody.CustodyExportView.as_view(), name="custody-export"),
    path("vault/intake-key", custody.IntakeKeyView.as_view(), name="intake-key"),
    path("wallet", money.WalletView.as_view(), name="wallet"),
    path("topups", money.TopUpsView.as_view(), name="top-ups"),
    path("topups/<uuid:top_up_id>", money.TopUpView.as_view(), name="top-up"),
    path("topups/<uuid:top_up_id>/cancel", money.CancelTopUpView.as_view(), name="cancel-top-up"),
    path("topups/<uuid:top_up_id>/refunds", refunds.TopUpRefundsView.as_view(), name="refunds"),
    path("promise-refunds", promises.PromiseRefundsView.as_view(), name="promise-refunds"),
    path("disputes", refunds.DisputesView.as_view(), name="disputes"),
    path("cards", cards.CardsView.as_view(), name="cards"),
    path("cards/<uuid:card_id>", cards.CardView.as_view(), name="card"),
    path("auto-top-up", cards.AutoTopUpView.as_view(), name="auto-top-up"),
    path("prompts", prompts.PromptsView.as_view(), name="prompts"),
    path("prompts/<uuid:prompt_id>", prompts.PromptView.as_view(), name="prompt"),
    path("runs", runs.RunsView.as_view(), name="runs"),
    path("runs/<run:run_id>", runs.RunView.as_view(), name="run"),
    path("runs/<run:run_id>/calls", runs.RunCallsView.as_view(), name="run-calls"),
    path("runs/<run:run_id>/close", runs.CloseRunView.as_view(), name="close-run"),
    path("trials", trials.TrialsView.as_view(), name="trials"),
    path("trials/<uuid:trial_id>", trials.TrialView.as_view(), name="trial"),
    path("trials/<uuid:trial_id>/pair", trials.TrialPairView.as_view(), name="trial-pair"),
    path("trials/<uuid:trial_id>/cancel", trials.CancelTrialView.as_view(), name="cancel-trial"),
    path("trials/<uuid:trial_id>/rows", trials.TrialRowsView.as_view(), name="trial-rows"),
    path("usage", usage.UsageView.as_view(), name="usage"),
    path("usage/summary", usage.UsageSummaryView.as_view(), name="usage-summary"),
    path("usage/csv", usage.UsageCsvView.as_view(), name="usage-csv"),
    path("billing-profile", papers.BillingProfileView.as_view(), name="billing-profile"),
    path("papers", papers.PapersView.as_view(), name="papers"),
    path("papers/<uuid:paper_id>/pdf", papers.PaperPdfView.as_view(), name="paper-pdf"),
    path("papers/<uuid:paper_id>/csv", papers.PaperCsvView.as_view(), name="paper-csv"),
    path("statements", statements.StatementsView.as_view(), name="statements"),
    path("statements/lines", statements.StatementLinesView.as_view(), name="statement-lines"),
    path("receipts/keys", receipts.ReceiptKeysView.as_view(), name="receipt-keys"),
    path("receipts/days", receipts.ReceiptDaysView.as_view(), name="receipt-days"),
    path("receipts/days/<day:day>/consistency", receipts.ReceiptConsistencyView.as_view(), name="receipt-consistency"),
    path("receipts/<uuid:prediction_id>", receipts.ReceiptView.as_view(), name="receipt"),
    path("payouts", payouts.PayoutsView.as_view(), name="payouts"),
    path("payouts/overview", payouts.PayoutOverviewView.as_view(), name="payout-overview"),
    path("payouts/dashboard", payouts.PayoutDashboardView.as_view(), name="payout-dashboard"),
    path("payouts/setup", payouts.PayoutSetupView.as_view(), name="payout-setup"),
    path("payouts/<uuid:payout_id>", payouts.PayoutView.as_view(), name="payout"),
    path("payouts/<uuid:payout_id>/statement", payouts.PayoutStatementView.as_view(), name="payout-statement"),
    path("earnings", money.EarningsView.as_view(), name="earnings"),
    path("earnings/versions", money.VersionEarningsView.as_view(), name="version-earnings"),
    path("in-use", in_use.ModelsInUseView.as_view(), name="models-in-use"),
    path("platform/statements", statements.PlatformStatementsView.as_view(), name="platform-statements"),
    path("platform/incidents", incidents.IncidentsView.as_view(), name="platform-incidents"),
    path(
        "platform/incidents/<int:incident_id>/clear",
        incidents.ClearIncidentView.as_view(),
        name="clear-incident",
    ),
    path("platform/reviews", reviews.QueueView.as_view(), name="queued-reviews"),
    path("platform/reviews/<uuid:review_id>/approve", reviews.ApproveReviewView.as_view(), name="approve-review"),
    path("platform/reviews/<uuid:review_id>/refuse", reviews.RefuseReviewView.as_view(), name="refuse-review"),
    path("platform/reviews/<uuid:review_id>/pull", reviews.PullReviewView.as_view(), name="pull-review"),
    path("platform/disputes", disputes.PlatformDisputesView.as_view(), name="platform-disputes"),
    path("platform/disputes/<dispute:dispute_id>", disputes.PlatformDisputeView.as_view(), name="platform-dispute"),
    path("platform/disputes/<dispute:dispute_id>/evidence", disputes.EvidenceView.as_view(), name="evidence"),
    path("status", status.StatusView.as_view(), name="status"),
    path("platform/billing-profile", papers.PlatformProfileView.as_view(), name="platform-billing-profile"),
    path("platform/status", status.StatusIncidentsView.as_view(), name="status-incidents"),
    path("platform/status/<int:incident_id>/updates", status.StatusUpdatesView.as_view(), name="status-updates"),
    path("platform/fleet", fleet.FleetView.as_view(), name="platform-fleet"),
    path("platform/replicas", fleet.ReplicasView.as_view(), name="platform-replicas"),
    path("platform/replicas/<replica:name>/drain", fleet.DrainReplicaView.as_view(), name="drain-replica"),
    path("platform/replicas/<replica:name>/undrain", fleet.UndrainReplicaView.as_view(), name="undrain-replica"),
    path("platform/replicas/<replica:name>/revoke", fleet.RevokeReplicaView.as_view(), name="revoke-replica"),
    path("platform/bases", clearances.PlatformBasesView.as_view(), name="platform-bases"),
    path("platform/clearances", clearances.ClearancesView.as_view(), name="platform-clearances"),
    path(
        "platform/clearances/<uuid:clearance_id>/measure",
        clearances.MeasureAgainView.as_view(),
        name="measure-again",
    ),
    path("platform/plans", plans.PlansView.as_view(), name="platform-plans"),
    path("platform/plans/<uuid:plan_id>", plans.PlanView.as_view(), name="platform-plan"),
    path("platform/plan-files", plans.PlanFilesView.as_view(), name="platform-plan-files"),
    path("platform/usage-file", plans.UsageFileView.as_view(), name="platform-usage-file"),
    path("platform/features", features.FeaturesView.as_view(), name="platform-features"),
    path("platform/features/<name:feature>", features.FeatureView.as_view(), name="platform-feature"),
    path("platform/health", oversight.HealthView.as_view(), name="platform-health"),
    path("platform/guards", oversight.GuardEventsView.as_view(), name="platform-guards"),
    path("platform/evaluations", oversight.PlatformEvaluationsView.as_view(), name="platform-evaluations"),
    path("platform/organizations", oversight.PlatformOrganizationsView.as_view(), name="platform-organizations"),
    path(
        "platform/organizations/<name:org>",
        oversight.PlatformOrganizationView.as_view(),
        name="platform-organization",
    ),
    path("platform/organizations/<name:org>/suspend", oversight.SuspendView.as_view(), name="suspend-organization"),
    path(
        "platform/organizations/<name:org>/reinstate", oversight.ReinstateView.as_view(), name="reinstate-organization"
    ),
    path(
        "platform/predictions/<uuid:prediction_id>/refund",
        oversight.RefundPredictionView.as_view(),
        name="refund-prediction",
    ),
    path("platform/topups/<uuid:top_up_id>/refund", oversight.RefundPaymentView.as_view(), name="refund-payment"),
    path("platform/summary", money.PlatformSummaryView.as_view(), name="platform-summary"),
    path("schema", schema.SchemaView.as_view(), name="schema"),
    re_path(r"^.*$", UnknownPath.as_view()),
]
