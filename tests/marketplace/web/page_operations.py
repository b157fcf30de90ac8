"""The operations of the APIs that do what each page does; see test_page_operations.py.

A line is `page …: operation …`: every page of the line has its reads and its forms in these operations together.
"""

from __future__ import annotations

BY_API = """
catalogue: list_models list_bases
ranking: list_models list_evaluations
model: get_model list_versions list_prices list_evaluations list_promises
accept_licence: get_licence_acceptance accept_licence
ask_for_access: get_admission get_access_request ask_for_access
price_calculator: list_prices quote
evaluation: list_evaluation_calls list_evaluations
evaluation_receipt: get_evaluation_receipt
report_model: report_model
more_calls: ask_for_more_calls
playground: create_chat_completion create_completion create_embeddings list_callable_models quote
keep_prompt: list_prompts get_prompt keep_prompt
delete_prompt: delete_prompt
dashboard: get_me get_wallet summarize_usage list_keys get_earnings
new_organization: create_organization
organization: get_organization get_transfer
change_name rename_organization: change_organization
set_logo: put_logo
remove_logo: delete_logo
offer_ownership: offer_ownership
accept_ownership: accept_ownership
end_transfer: end_transfer
leave_organization: leave_organization
members: list_members list_invites
invite_member: invite_member
resend_invite: resend_invite
revoke_invite: revoke_invite
change_role: change_member
remove_member: remove_member
accept_invite: accept_invite
audit: list_audit_entries list_audit_seals
audit_file: export_audit_entries
platform_audit: list_staff_decisions
keys: list_keys create_key
key: get_key
change_key: change_key
key_guards: get_key_guards set_key_guards
limit_key: set_key_budget
rotate_key: rotate_key
revoke_key: revoke_key
budgets: list_budgets list_budget_alerts create_team_budget
limit_organization: set_organization_budget
budget: get_budget change_budget delete_team_budget list_end_user_budgets set_end_user_budget set_key_budget
alerts: list_alerts list_alert_kinds
mute_kind: mute_alert_kind
webhooks: list_webhooks create_webhook
webhook: get_webhook change_webhook list_webhook_deliveries get_webhook_delivery
rotate_webhook_secret: rotate_webhook_secret
test_webhook: test_webhook
switch_webhook: change_webhook
delete_webhook: delete_webhook
replay_delivery: replay_webhook_delivery
runs: list_runs
run: get_run list_run_calls
close_run: close_run
trials: list_trials start_trial
trial trial_progress: get_trial
judge_trial: get_trial_pair judge_trial_pair
cancel_trial: cancel_trial
delete_trial_rows: delete_trial_rows
batches: list_batches list_files upload_file create_batch
batch batch_progress: get_batch
cancel_batch: cancel_batch
batch_file: get_file quote_batch create_batch
file_content: get_file_content
delete_file: delete_file
usage: list_usage summarize_usage
usage_csv: export_usage
receipt receipt_state receipt_file: get_receipt
verify_receipt: get_receipt_keys list_receipt_days get_receipt_consistency
wallet: get_wallet list_top_ups start_top_up list_cards get_auto_top_up list_promise_refunds list_disputes
top_up: get_top_up list_refunds refund_top_up
cancel_top_up: cancel_top_up
add_card: add_card
card_saved: list_cards
remove_card: remove_card
auto_top_up: get_auto_top_up set_auto_top_up
stop_auto_top_up: stop_auto_top_up
payouts: list_payouts get_payout_overview start_payout
payout_terms: set_payout_terms
payout_setup: open_payout_setup
payout_stripe: open_payout_dashboard
payout payout_csv: get_payout get_payout_statement
statements statement_csv statement_pdf: get_statement list_statement_lines
papers: list_papers
paper_file: get_paper_pdf get_paper_csv
billing_profile: get_billing_profile put_billing_profile
security: list_sessions get_second_factor
end_session: end_session
end_other_sessions: end_other_sessions
require_second_factor: require_second_factor
my_models: list_models list_reviews
my_model: get_model list_versions list_reviews list_prices set_price get_model_guard list_eval_sets list_eval_runs
new_listing: create_model
listing: get_model update_model
set_model_logo: set_logo remove_logo
access_requests: list_access_requests
answer_access_request: answer_access_request
appeal: appeal_review
in_use: get_in_use list_alarms set_alarms
model_guards: get_model_guards set_model_guards
attack_guard: quote_eval_run start_eval_run
remove_attack_guard: remove_model_guard
royalties: update_model
promise: set_promise
protection: get_protection update_protection list_noted_customers
answer_customer: answer_customer
custody: get_custody get_holders
custody_export: export_custody
version: get_version get_rollout list_precisions
leave: set_leave
version_act: set_rollout make_default change_version deprecate_version keep_version
change_version: publish_version retire_version revoke_version
selling: list_models_in_use get_earnings
earnings earnings_csv: get_earnings get_version_earnings
status status_json status_feed: get_status
platform: get_platform_summary list_incidents list_queued_reviews list_platform_disputes
live: get_platform_summary list_replicas get_fleet
fleet: list_replicas allow_replica get_fleet
change_replica: drain_replica undrain_replica revoke_replica
post_status: post_status_incident
platform_billing_profile: get_platform_billing_profile put_platform_billing_profile
features: list_features
switch_feature: switch_feature
update_status: update_status_incident
ledger_health: get_ledger_health list_incidents
resolve_incident: clear_incident
guard_events: get_guard_events
platform_evaluations: list_platform_evaluations
bases: list_platform_bases list_clearances
measure_again: measure_again
capacity: list_plans get_plan list_plan_files ask_for_plan get_fleet
capacity_plan capacity_targets: get_plan
capacity_files: add_plan_file
capacity_usage: get_usage_file
staff_organizations: list_platform_organizations
staff_organization: get_platform_organization
change_standing: suspend_organization reinstate_organization
staff_refunds give_refund: refund_prediction refund_payment
reviews review: list_queued_reviews
decide_review: approve_review refuse_review pull_review
disputes: list_platform_disputes
dispute: get_platform_dispute submit_evidence
platform_statement: get_platform_statement
"""

# Pages that are pages by nature, each with the reason.
PAGES_ALONE = {
    "landing": "words for people who come for the first time",
    "pricing": "words around prices that every model's own operation names",
    "docs": "words for people; their files stand in the source",
    "docs_page": "words for people; their files stand in the source",
    "docs_reference": "the description of the APIs, which GET /api/v1/schema gives to programs",
    "favicon": "for browsers",
    "robots": "for search engines",
    "sitemap": "for search engines",
    "share_picture": "for sites that show a link",
    "logo": "a file whose address get_organization names",
    "model_logo": "a file whose address get_model names",
    "download": "the package of the command line, of which the quick start names the address",
    "playground_token": "the credential of the playground's own script; programs have API keys",
    "switch_organization": "a choice that a session keeps; programs send X-Organization, or have a key of one",
    "send_verification": "a mail to the person who has just signed up in the browser",
    "preview_card": "a draft as the browser will show it; nothing is kept",
    "data": "the page around the copies and the deletions",
    "copy_user": "a person's own data go to that person in the browser, never to a key that others hold",
    "copy_organization": "all data at once go to an owner or admin in the browser, never to a key that others hold",
    "delete_user": "asks for the person's password in its own form, whatever the session",
    "delete_organization": "asks for the owner's password in its own form, whatever the session",
}
