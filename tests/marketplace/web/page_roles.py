"""The readers and the changers of each page; see test_roles.py.

A scope names the members whose role carries it, `keys` those who carry any scope that keys have, `member` is every
member, `person` whoever is signed in, `staff` the platform's, `all` everybody.
"""

from __future__ import annotations

READ = {
    "all": "landing catalogue model model_logo price_calculator evaluation evaluation_receipt ranking download "
    "accept_invite logo verify_receipt pricing favicon robots sitemap share_picture docs docs_page "
    "docs_reference status status_json status_feed",
    "person": "new_organization security",  # signed in; a member of nothing, too
    "member": "dashboard alerts receipt receipt_file receipt_state data",
    "read": "organization members budgets usage usage_csv my_models in_use custody custody_export runs run",
    "keys": "keys key",
    "predict": "trials trial trial_progress judge_trial playground batches batch batch_progress batch_file "
    "file_content",
    "publish": "my_model protection earnings earnings_csv selling version listing new_listing access_requests",
    "account": "audit audit_file budget wallet top_up card_saved payouts payout payout_csv statements "
    "statement_csv statement_pdf papers billing_profile paper_file webhooks webhook",
    "staff": "platform platform_audit reviews review disputes dispute platform_statement fleet post_status "
    "platform_billing_profile ledger_health guard_events platform_evaluations staff_organizations staff_organization "
    "bases staff_refunds features capacity capacity_plan capacity_usage capacity_targets",
    "elsewhere": "live",  # a stream, of which browser/test_fleet.py and test_operator_pages.py know
}
CHANGE = {
    "all": "verify_receipt accept_invite playground_token",  # which check for themselves who asks
    "person": "new_organization send_verification end_session end_other_sessions",
    # About oneself, or checked by role or scope within.
    "member": "switch_organization mute_kind copy_user copy_organization delete_user delete_organization "
    "report_model require_second_factor",
    "read": "accept_ownership end_transfer leave_organization",
    "keys": "keys key_guards change_key rotate_key revoke_key",
    "predict": "more_calls trials judge_trial cancel_trial delete_trial_rows accept_licence ask_for_access "
    "keep_prompt delete_prompt batches cancel_batch batch_file delete_file",
    "publish": "appeal my_model in_use model_guards remove_attack_guard attack_guard royalties promise protection "
    "answer_customer change_version version_act leave listing new_listing preview_card set_model_logo "
    "answer_access_request",
    "account": "change_name rename_organization set_logo remove_logo offer_ownership invite_member resend_invite "
    "revoke_invite change_role remove_member budgets limit_organization budget limit_key webhooks "
    "webhook delete_webhook rotate_webhook_secret test_webhook switch_webhook replay_delivery wallet "
    "top_up cancel_top_up add_card remove_card auto_top_up stop_auto_top_up payouts payout_terms "
    "payout_setup payout_stripe billing_profile close_run",
    "staff": "decide_review dispute fleet change_replica post_status update_status resolve_incident "
    "change_standing measure_again give_refund platform_billing_profile switch_feature capacity capacity_files",
}
