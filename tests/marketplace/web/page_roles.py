"""The readers and the changers of each page; see test_roles.py.

A scope names the members whose role carries it, `member` is every member, `staff` the platform's, `all` everybody.
"""

from __future__ import annotations

READ = {
    "all": "landing catalogue model price_calculator evaluation evaluation_receipt ranking download accept_invite logo "
    "verify_receipt",
    "person": "new_organization",  # signed in; a member of nothing, too
    "member": "dashboard alerts receipt receipt_file data",
    "read": "organization members budgets usage my_models in_use custody custody_export",
    "predict": "trials trial trial_progress judge_trial",
    "publish": "my_model protection earnings",
    "account": "audit audit_file keys budget key wallet top_up card_saved payouts payout payout_csv statements "
    "statement_csv statement_pdf papers billing_profile paper_file",
    "staff": "platform platform_audit reviews review disputes dispute platform_statement",
}
CHANGE = {
    "all": "verify_receipt accept_invite playground_token",  # which check for themselves who asks
    "person": "new_organization",
    # About oneself, or checked by role or scope within.
    "member": "switch_organization mute_kind copy_user copy_organization delete_user delete_organization report_model",
    "read": "accept_ownership end_transfer leave_organization",
    "predict": "more_calls trials judge_trial cancel_trial delete_trial_rows",
    "publish": "appeal my_model in_use model_guards remove_attack_guard attack_guard royalties promise protection "
    "answer_customer change_version",
    "account": "change_name rename_organization set_logo remove_logo offer_ownership invite_member resend_invite "
    "revoke_invite change_role remove_member keys budgets limit_organization budget add_webhook delete_webhook key "
    "revoke_key wallet top_up cancel_top_up add_card remove_card auto_top_up stop_auto_top_up payouts payout_terms "
    "payout_setup payout_stripe billing_profile",
    "staff": "decide_review dispute",
}
