"""Every `code` of a refusal, under `/v1` and `/api/v1` alike: its usual status, and one sentence. Pure.

docs/errors.md is made of it (a test compares them), and a test finds codes in the sources that stand nowhere here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TEXT = """
# The caller
not_authenticated 401 there are no credentials: send `Authorization: Bearer ik_…`
invalid_api_key 401 the API key is none of this platform
revoked_api_key 401 the API key was revoked
expired_api_key 401 the API key has expired
invalid_credentials 401 e-mail and password do not prove who is calling
invalid_device_token 401 the token of `intarsia login` has ended, or was traded before
authentication_failed 401 the credentials were refused
permission_denied 403 the session's token against forged requests is missing
forbidden 403 the caller is known and may not do this
scope_missing 403 the key or the role lacks the scope that the message names
beyond_own_limits 403 a key gives no more than it has itself: models, networks, scopes, guards, budget and end
record_not_authentic 403 a record that decides this was not made by the platform, or was changed past it
address_not_allowed 403 the key may not be used from this network
model_not_allowed 403 the key may not call this model
origin_not_allowed 403 pages of this origin may not call the API from a browser
staff_only 403 only the platform's staff may do this
own_model 403 it is a model of your own organization: somebody else decides
not_to_judge 403 you may not judge this comparison
session_required 403 sign in on the web site: a key cannot do this
second_factor_required 403 the code of an authenticator app is needed
organization_required 400 you belong to several organizations: name one in `X-Organization`
email_unverified 403 the person who acts has not verified their e-mail address yet
reauthentication_required 403 prove yourself again on the site: the session is older than 15 minutes
api_key_required 403 this belongs to API keys, and the playground has none
organization_suspended 403 staff stopped the organization; its owners have the reason by mail
licence_not_accepted 403 accept the model's licence first; the message has the page
access_not_granted 403 the creator lets each customer in; the message has the page
model_off_sale 403 the model's creator is suspended
wrong_address 403 the invite is for another address
# The request
invalid 400 a value breaks a rule; `param` names it
unknown_field 400 no field or parameter is called `param`; the message names the one that may have been meant
required 400 the field `param` is missing
blank 400 the field `param` is empty
null 400 the field `param` may not be null
invalid_choice 400 the field `param` is none of its values
min_value 400 the number `param` is too small
max_value 400 the number `param` is too large
min_length 400 `param` is too short
max_length 400 `param` is too long
max_string_length 400 `param` is too long
not_a_list 400 `param` must be a list
not_a_dict 400 `param` must be an object
empty 400 `param` may not be empty
date 400 `param` is a date where a time is needed
datetime 400 `param` is a time where a date is needed
make_aware 400 `param` has a time zone in which it does not exist
overflow 400 the time `param` is out of range
null_characters_not_allowed 400 `param` has a null character
surrogate_characters_not_allowed 400 `param` has half of a character
parse_error 400 the body is no JSON object
bad_request 400 the request cannot be read
invalid_json 400 the JSON cannot be read
invalid_value 400 a value breaks a rule; `param` names it
invalid_grammar 400 the grammar or schema of `response_format` cannot be used
invalid_end_user 400 `user` is no name of an end user
invalid_idempotency_key 400 the header `Idempotency-Key` has a form that is not allowed
invalid_encoding 400 the body is not what its `Content-Encoding` says
no_chat_template 400 the model takes no messages: use completions
context_length_exceeded 400 the prompt is longer than the model's context
beams_too_wide 400 the beams of a search need more memory, or rows of a step, than there are
prompt_exceeds_authorization 400 the prompt is longer than what was set aside for it
logprobs_closed 400 the model does not tell the probabilities that the request asks for
cannot_be_masked 400 personal data stands where it cannot be masked
too_long_to_mask 400 the request is too long to be searched for personal data
too_long_to_guard 400 the request is too long for the model's guard
guard_refused 400 the model's guard refused the request
contract_chat_only 400 the model's contract takes chats alone
contract_logprobs 400 the model's contract does not tell the probabilities that the request asks for
contract_system 400 the model's contract takes no system message
contract_messages 400 the model's contract takes one user message
contract_output 400 the model's contract has a form of answer of its own
client_disconnected 400 the client left before its request was whole
reserved 400 the name is reserved
unknown_signing_key 400 the signing key is not registered
unknown_guard 400 there is no such guard for sale to you
ambiguous_base 400 the platform has several base models, or several of this name: name one by its fingerprint
unknown_base 400 the platform has no such base model
unknown_model 400 the model is not for sale to you
nothing_asked 400 nothing was asked for
invalid_rows 400 the rows cannot be read
rows_too_large 400 the rows are too large
not_found 404 it does not exist, or is not yours: the two cannot be told apart
model_not_found 404 the model does not exist or is not for sale to you
not_offered 404 the model does not sell this
unknown_package 404 there is no such package
method_not_allowed 405 the path has no such method; the header `Allow` names those it has
not_acceptable 406 answers are JSON
body_timeout 408 the body did not arrive in time
request_timeout 408 the body did not arrive in time
length_required 411 the header `Content-Length` is needed
body_too_large 413 the body is too large
request_too_large 413 the body is too large
too_large 413 it is too large
chunk_too_large 413 a chunk of a package is too large
package_too_large 413 a package is too large
set_too_large 413 a set of rows is too large
unsupported_encoding 415 the `Content-Encoding` is not known here
unsupported_media_type 415 the `Content-Type` is not known here
idempotency_key_reused 422 the `Idempotency-Key` came before with another request
request_id_reused 422 the id came before with another request
answer_too_large 422 what was asked for is larger than an answer may be
package_refused 422 the package breaks a rule; the message says which
export_too_large 422 the export is too large
too_many_lines 422 there are too many lines
unsupported_parameter 400 the field `param` is not supported here
unsupported_tool 400 the platform runs no tools of its own: give functions
unsupported_item 400 an item of `input` is of a kind that is not read
unsupported_part 400 a part of a message is of a kind that is not read
conversation_too_long 400 the conversation is too long for one request
invalid_form 400 the upload is no form that can be read
invalid_lines 400 lines of the file cannot be read; the message names them
file_too_large 413 the file is larger than allowed
not_a_picture 400 the file is no PNG, JPEG or WebP picture
too_many_entries 400 the file would have too many entries: name days
run_unknown 404 there is no such run of this key
file_not_found 404 the input file was deleted
# Its subject is not in the state for it
conflict 409 the state does not allow it, or the name is taken
already_derived 409 the model has said what it is derived from
already_processed 409 it was processed before
amount_not_payable 409 the amount cannot be paid out
amount_not_refundable 409 the amount cannot be refunded
appealed_before 409 an appeal was decided before
balance_left 409 a balance is left
below_minimum 409 the amount is below the minimum
budget_tree 409 the tree of budgets does not allow it
cancelled 409 it was cancelled
card_in_use 409 the card is used for automatic top-ups
code_ended 409 the code of a login has ended, or somebody has decided about it
correction_refused 409 the correction does not fit what was booked
delivery_waiting 409 the delivery is still on its way
derivation_closed 409 the model is not open to derived models
derivation_too_deep 409 a chain of derived models would be too long
digest_mismatch 422 the package has another digest
evidence_refused 409 the evidence cannot be sent
files_missing 409 a plan needs files that were not added yet
in_progress 409 the first request under this `Idempotency-Key` is not answered yet
key_inactive 409 the key is revoked or expired
key_taken 409 the public key cannot be registered
listing_changed 409 the listing was changed since it was read
malformed_package 422 the package cannot be read
month_not_closable 409 the month cannot be closed yet
no_output_schema 409 the version's contract has no schema of choices to promise answers by
no_payout_account 409 payouts are not set up
no_price 409 the model has no price
not_an_adapter 409 it is a base model
not_erasable 409 something is open that keeps it from being deleted
not_limited 403 nothing limits the calls
not_on_sale 409 nothing of the model is for sale
not_refused 409 nothing was refused
not_verified 409 the version is not verified
package_known 409 the package was uploaded before
payout_in_progress 409 another payout is on its way
payouts_frozen 409 payouts are frozen
plan_waits 409 a plan is waiting already
refunds_frozen 409 refunds are frozen
refused_by_review 409 a review keeps it from sale
reported_before 409 your organization has reported the model before
review_closed 409 the review has ended
review_open 409 another review of the same is open
royalties_too_high 409 the royalties are more than all that the model earns
royalty_too_low 409 a model asks for a higher royalty
run_open 409 a run is open
set_not_ready 409 the set of rows is not ready
signing_key_revoked 422 the signing key is revoked
slug_taken 409 the name is taken
statement_not_ready 409 the statement is not made yet
thumb_counts 409 the thumb was given too long ago to be changed
too_few_rows 409 the set has too few rows
too_many_prices 409 too many prices wait for their day
too_many_webhooks 409 the organization has as many webhooks as it may
upload_closed 409 the upload has ended
upload_expired 422 the upload was not completed in time
upload_incomplete 409 bytes of the upload are missing
webhook_disabled 409 the webhook is disabled
wrong_data_key 422 the data key is not wrapped for this platform
wrong_header 422 the package's header is that of another kind
wrong_kind 409 it is of another kind
wrong_offset 409 the upload goes on at another offset; the header `Upload-Offset` says which
wrong_signature 422 the package's signature is wrong
wrong_state 409 the version's state does not allow it
already_asked 409 the organization has asked already
already_granted 409 the organization has access already
already_member 409 the person is a member already
invite_gone 404 the invite was used, revoked or has expired
last_owner 409 an organization keeps one owner: make another one first
licence_changed 409 the licence was changed since it was read
not_admitted 403 the model asks for its licence or for access first
no_licence 403 the model has no licence to accept
not_gated 403 nobody has to ask for access to the model
file_in_use 409 a batch is reading the file
mismatched_endpoint 409 the lines of the file ask another endpoint than the batch
unreadable_file 409 the file's key is gone
in_use 409 customers called the version, or the model that would be private, in the last 30 days: announce its end first
is_default 409 the version is what everybody gets already
no_default 409 nothing of the model is for sale yet
no_rollout 409 the version is not rolled out
rollout_open 409 another version is rolled out: end that first
not_deprecated 409 no end of the version is announced
published 409 the version was published: its changelog stands
name_taken 409 something has this name already
incident_resolved 409 the incident is resolved
not_suspended 409 the organization is not suspended
own_organization 409 the platform's own organization cannot be suspended
run_closed 409 the run was closed
run_expired 409 the run's deadline has passed
# Money and limits
insufficient_funds 402 the wallet cannot cover the worst case; nothing was charged
budget_exceeded 429 a budget cannot cover the worst case; nothing was charged
rate_limited 429 too many requests: wait as long as `Retry-After` says
too_many_attempts 429 this was tried too often
too_many_failures 429 too many passwords were wrong
too_many_reports 429 too many reports in a day
too_many_tests 429 too many test events in an hour
too_many_replays 429 too many replays in an hour
too_many_keys 403 the organization has as many active keys as it may
too_many_new_keys 403 the organization has made as many keys as it may in a day
too_many_models 403 the organization lists as many models as it may
too_many_organizations 403 the person owns as many organizations as they may
too_many_runs 403 as many runs are open as may be
too_many_sets 403 as many sets of rows are open as may be
too_many_trials 403 as many comparisons are open as may be
too_many_uploads 403 as many uploads are open as may be
extraction_stopped 403 calls to the model are stopped: they look like the making of a copy
model_revoked 403 the model was withdrawn
adapter_revoked 403 the version was withdrawn
run_budget_exceeded 429 the call does not fit what is left of the run's money
run_calls_exhausted 429 the run has no calls left
guard_refusals_exhausted 429 the model's guard has refused too many of your texts today
share_full 429 the organization has as much of this under way as it may have: wait for some of it
too_many_names 400 the lines of the file name too many models
too_many_open 429 too much work in the background is open: wait for some of it
file_storage_full 409 the organization's files fill their room: delete some
too_many_invites 403 no more invites today
too_many_members 403 the organization has as many members as it may have
too_many_prompts 409 the organization keeps as many prompts as it may keep
too_many_renames 403 no more new names this year
too_many_requests_waiting 403 too many requests of the organization wait for an answer
too_many_incidents 409 too many incidents are open
# The platform
internal_error 500 something broke on our side; nothing was changed
billing_error 500 something broke in the books; nothing was changed
vault_error 500 something broke in the vault; nothing was changed
replica_error 502 a replica broke; nothing was charged
replica_call_failed 502 a replica could not be asked
feature_off 503 staff switched this off just now, for everybody or for your organization
no_replica 503 no replica serves the model's base right now
no_live_replica 503 no replica is there
replica_lost 503 the replica was lost in the middle of an answer; what was delivered is charged
answer_cut_short 503 the answer was cut short; what was delivered is charged
outcome_unknown 503 it is not known yet whether the prediction is charged: look at your usage before trying again
overloaded 429 a replica has as much to do as it takes
queue_full 429 a replica has as much to do as it takes
busy 503 the gateway has as much to do as it takes
too_slow 503 the work took too long and was stopped
starting 503 the platform is starting
database 503 the platform's database is away
gateway_fault 503 the gateway failed; nothing was charged
deadline_exceeded 504 the answer did not come in time
engine_error 500 a replica's engine failed
engine_stopped 503 a replica is stopping
adapter_unavailable 503 the model's weights cannot be loaded right now
constraint_failed 500 the answer could not be held to its schema
non_finite_output 500 the model gave numbers that are none
journal_unavailable 503 a replica cannot write its journal
guard_unavailable 503 the model's guard cannot be asked right now
masking_busy 503 the search for personal data has as much to do as it takes
masking_failed 503 the search for personal data failed
masking_unavailable 503 the platform cannot search for personal data
payment_provider_unavailable 503 the payment provider cannot be reached; no money moved
not_bootstrapped 503 the platform is not set up
storage_unavailable 507 there is no room for the upload
"""


def _read() -> tuple[tuple[str, tuple[tuple[str, int, str], ...]], ...]:
    groups: list[tuple[str, list[tuple[str, int, str]]]] = []
    for line in _TEXT.strip().splitlines():
        if line.startswith("# "):
            groups.append((line[2:], []))
            continue
        code, status, meaning = line.split(" ", 2)
        groups[-1][1].append((code, int(status), meaning))
    return tuple((name, tuple(rows)) for name, rows in groups)


GROUPS = _read()
CODES: Mapping[str, int] = MappingProxyType({code: status for _, rows in GROUPS for code, status, _ in rows})

# Between replicas, or the commands of staff, and the platform alone: no customer sees them.
INTERNAL = frozenset(
    {
        "base_in_use",
        "chain_broken",
        "checkpoint_known",
        "data_key_refused",
        "invalid_ticket",
        "line_taken",
        "name_in_use",
        "no_demand",
        "not_cleared",
        "not_enrolled",
        "platform_error",
        "protocol_version",
        "protocol_violation",
        "receipt_contradicted",
        "grant_refused",
        "release_budget",
        "release_denied",
        "replica_enrolled",
        "session_refused",
        "too_many_checkpoints",
        "vault_unreachable",
        "verification_failed",
        "wrong_base",
    }
)


def tables() -> str:
    """Return the tables of docs/errors.md."""
    parts = []
    for name, rows in GROUPS:
        lines = [f"| {status} | `{code}` | {meaning} |" for code, status, meaning in rows]
        parts.append("\n".join([f"## {name}", "", "| status | code | meaning |", "|---|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"
