"""The faults: each is one slip in a rule, a state, a filter, a bound, a sign, a lock or an order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file.

    old: stands in the file exactly once
    tests: the folders whose tests should notice
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


BILLING = ("tests/billing",)
GATEWAY = ("tests/marketplace/gateway",)
VAULT = ("tests/marketplace/vault",)
SCHEDULER = ("tests/serving/scheduler",)
KV = ("tests/serving/kv",)
SAMPLING = ("tests/serving/engine",)
ROUTING = ("tests/routing",)
PUBLISHING = ("tests/marketplace/publishing",)
ADAPTERS = ("tests/serving/adapters",)
INTAKE = ("tests/sealed_weights/intake",)

OWN = (
    # -- billing ----------------------------------------------------------------------------------------------------
    Fault(
        "failed refunds count as given back",
        "billing/refunds.py",
        "TopUpRefund.objects.filter(~Q(state=State.FAILED), top_up=top_up)",
        "TopUpRefund.objects.filter(top_up=top_up)",
        BILLING,
    ),
    Fault(
        "credit that holds have set aside is refunded",
        "billing/refunds.py",
        "min(lot.remaining, wallet.available) // NANO_PER_CENT",
        "lot.remaining // NANO_PER_CENT",
        BILLING,
    ),
    Fault(
        "paid top-ups count as unpaid attempts",
        "billing/top_ups.py",
        "created_at__gt=timezone.now() - ATTEMPT_WINDOW).exclude(state=TopUp.State.CREDITED)",
        "created_at__gt=timezone.now() - ATTEMPT_WINDOW)",
        BILLING,
    ),
    Fault(
        "payees of a lost dispute give what is payable before their reserve",
        "billing/disputes/books.py",
        "_PAYEES = (_Kind.CREATOR_RESERVE, _Kind.CREATOR_PAYABLE, _Kind.RECEIVABLE)",
        "_PAYEES = (_Kind.CREATOR_PAYABLE, _Kind.CREATOR_RESERVE, _Kind.RECEIVABLE)",
        BILLING,
    ),
    Fault(
        "the monthly limit of automatic top-ups is looked at before the amount is added",
        "billing/auto_top_ups.py",
        "_paid_this_month_cents(organization_id) + rule.amount_cents > rule.monthly_limit_cents",
        "_paid_this_month_cents(organization_id) > rule.monthly_limit_cents",
        BILLING,
    ),
    Fault(
        "a debt is netted twice, from the reserve and from what is payable",
        "billing/payouts/reserve.py",
        "from_payable = min(max(payable, 0), max(-receivable, 0) - from_reserve)",
        "from_payable = min(max(payable, 0), max(-receivable, 0))",
        BILLING,
    ),
    Fault(
        "a payout of exactly the minimum is refused",
        "billing/payouts/services.py",
        "if cents < minimum:",
        "if cents <= minimum:",
        BILLING,
    ),
    Fault(
        "a team may hang below a team that is below it",
        "billing/budgets/tree.py",
        "if node.pk in parent.path:",
        "if node.pk == parent.pk:",
        BILLING,
    ),
    # -- gateway ----------------------------------------------------------------------------------------------------
    Fault(
        "an answer is replayed on another path",
        "marketplace/gateway/replays.py",
        "if found.path == key.path:",
        "if found.body:",
        GATEWAY,
    ),
    Fault(
        "a key whose revocation lies ahead is refused at once",
        "marketplace/gateway/principals.py",
        "if row.revoked_at is not None and row.revoked_at <= now:",
        "if row.revoked_at is not None:",
        GATEWAY,
    ),
    Fault(
        "a referral that has ended is paid all the same",
        "marketplace/gateway/offers.py",
        "WHERE id = %s AND referral_ends_at > now()",
        "WHERE id = %s",
        GATEWAY,
    ),
    Fault(
        "a creator's own calls count against its rules",
        "marketplace/gateway/protection.py",
        "if rules is None or not rules.active or principal.organization_id == offer.creator_organization_id:",
        "if rules is None or not rules.active:",
        GATEWAY,
    ),
    Fault(
        "a burst lets one request too many through",
        "marketplace/gateway/ratelimit.py",
        "local earliest = arrival + interval - burst * interval",
        "local earliest = arrival - burst * interval",
        GATEWAY,
    ),
    Fault(
        "a customer's limit lets one call too many through",
        "marketplace/gateway/counters.py",
        "if used < one[3] then",
        "if used <= one[3] then",
        GATEWAY,
    ),
    Fault(
        "drained replicas are sent calls",
        "marketplace/gateway/offers.py",
        "\n  AND NOT EXISTS (SELECT 1 FROM vault_enrolledreplica e WHERE e.name = r.name AND e.drained_at IS NOT NULL)",
        "",
        GATEWAY,
    ),
    # -- vault ------------------------------------------------------------------------------------------------------
    Fault(
        "a name that staff revoked is reported lost",
        "marketplace/vault/absences.py",
        '.exclude(name__in=EnrolledReplica.objects.filter(revoked_at__isnull=False).values("name"))',
        "",
        VAULT,
    ),
    Fault(
        "an order to prefetch lets a replica verify",
        "marketplace/vault/demand.py",
        "digest=version.package_digest, kind=kind, expires_at__gt",
        "digest=version.package_digest, expires_at__gt",
        VAULT,
    ),
    Fault(
        "an old challenge is good for ever",
        "marketplace/vault/enrolment.py",
        "nonce=nonce, name=registration.name, created_at__gte=fresh_after)",
        "nonce=nonce, name=registration.name)",
        VAULT,
    ),
    Fault(
        "a key stays on a checkpoint that its creator left while it was measured",
        "marketplace/vault/clearance.py",
        'Q(state=Clearance.State.MEASURING, leave="")',
        "Q(state=Clearance.State.MEASURING)",
        VAULT,
    ),
    Fault(
        "a session that was silent too long rises again",
        "marketplace/vault/sessions.py",
        "AND r.gone_at IS NULL AND r.last_seen_at > now() - make_interval(secs => %(lease)s)",
        "AND r.gone_at IS NULL",
        VAULT,
    ),
    # -- scheduler --------------------------------------------------------------------------------------------------
    Fault(
        "tokens that are computed again after a preemption are charged again",
        "serving/scheduler/accounts.py",
        "start = max(chunk.start, sequence.charged)",
        "start = chunk.start",
        SCHEDULER,
    ),
    Fault(
        "a stream that was interrupted after its first token waits behind new ones",
        "serving/scheduler/queues.py",
        "place = _Place(rank, sequence.output_tokens > 0,",
        "place = _Place(rank, sequence.output_tokens > 1,",
        SCHEDULER,
    ),
    Fault(
        "a tenant that comes back has credit for the time that it was away",
        "serving/scheduler/fairness.py",
        "max(self._counters.get(tenant, 0.0), self.virtual_time)",
        "self._counters.get(tenant, self.virtual_time)",
        SCHEDULER,
    ),
    Fault(
        "of two victims the one that is dearer to compute again goes",
        "serving/scheduler/preemption.py",
        "round(slack), -sequence.planned, sequence.arrival",
        "round(slack), sequence.planned, sequence.arrival",
        SCHEDULER,
    ),
    # -- kv ---------------------------------------------------------------------------------------------------------
    Fault(
        "prefixes are evicted before their tails",
        "serving/kv/pool.py",
        "for block in reversed(blocks):",
        "for block in blocks:",
        KV,
    ),
    Fault(
        "the block that was used last is evicted first",
        "serving/kv/pool.py",
        "block, _ = self._cached.popitem(last=False)",
        "block, _ = self._cached.popitem()",
        KV,
    ),
    Fault(
        "plaintext of an owner that was forgotten stays in a frame",
        "serving/kv/spill.py",
        "if isinstance(job.error, KeyForgotten) or job.key.place is None:",
        "if isinstance(job.error, KeyForgotten):",
        KV,
    ),
    # -- sampling ---------------------------------------------------------------------------------------------------
    Fault(
        "top-p counts mass that top-k took away",
        "serving/sampling/draw.py",
        "(cumulative - values < tops * mass)",
        "(cumulative - values < tops)",
        SAMPLING,
    ),
    Fault(
        "tokens of the prompt count as generated",
        "serving/sampling/state.py",
        "self._counts.add(request.prompt_token_ids, 0)",
        "self._counts.add(request.prompt_token_ids, 1)",
        SAMPLING,
    ),
    Fault(
        "a token behind a draft is drawn with the number of the draft's first",
        "serving/sampling/sampler.py",
        "sequences[i].uniform(sequences[i].output_tokens + len(ahead[i]))",
        "sequences[i].uniform(sequences[i].output_tokens)",
        (*SAMPLING, "tests/serving/speculation"),
    ),
    # -- routing ----------------------------------------------------------------------------------------------------
    Fault(
        "a replica that holds a conversation's KV goes first without its adapter",
        "routing/ranking.py",
        "if call.conversation in views[at].prefixes and call.adapter in views[at].adapters]",
        "if call.conversation in views[at].prefixes]",
        ROUTING,
    ),
    Fault(
        "a home of a nearly idle pool takes no call",
        "routing/ranking.py",
        "max(rule.free, rule.bound * fleet.mean_load)",
        "min(rule.free, rule.bound * fleet.mean_load)",
        ROUTING,
    ),
    Fault(
        "an adapter may fill its home to the last seat",
        "routing/homes.py",
        "math.ceil(rate * service_s / (_FILL * seats))",
        "math.ceil(rate * service_s / seats)",
        ROUTING,
    ),
    # -- publishing -------------------------------------------------------------------------------------------------
    Fault(
        "a creator is told of its own version's end as a customer",
        "marketplace/publishing/endings.py",
        "return frozenset(rows.exclude(organization_id=creator_id).values_list(",
        "return frozenset(rows.values_list(",
        PUBLISHING,
    ),
    Fault(
        "organizations that never paid count as reporters that pay",
        "marketplace/publishing/reports.py",
        "organization_id=organization_id, cost_nano_usd__gt=0)",
        "organization_id=organization_id)",
        PUBLISHING,
    ),
    Fault(
        "a refusal is appealed twice",
        "marketplace/publishing/appeals.py",
        "if review.appealed_at is not None:",
        "if review.appealed_at is not None and review.decided_at is None:",
        PUBLISHING,
    ),
    # -- adapters ---------------------------------------------------------------------------------------------------
    Fault(
        "an adapter that was revoked is loaded again",
        "serving/adapters/policy.py",
        "if digest not in busy and digest not in refused and digest not in chosen:",
        "if digest not in busy and digest not in chosen:",
        ADAPTERS,
    ),
    Fault(
        "the load time that was learned last is forgotten first",
        "serving/adapters/load_times.py",
        "self._own.popitem(last=False)",
        "self._own.popitem()",
        ADAPTERS,
    ),
    # -- intake -----------------------------------------------------------------------------------------------------
    Fault(
        "of two patterns that fit a module the last one wins",
        "sealed_weights/intake/adapter_config.py",
        "return min(matches)[1] if matches else default",
        "return max(matches)[1] if matches else default",
        INTAKE,
    ),
    Fault(
        "a token may be trained twice",
        "sealed_weights/intake/adapter_config.py",
        "0 < len(ids) == len(set(ids))",
        "0 < len(ids)",
        INTAKE,
    ),
)

# Those that no test noticed when 37 others were planted: rules with a number or a state.
SURVIVED_ONCE = (
    Fault(
        "a refund leaves while an automatic top-up waits for the bank",
        "billing/refunds.py",
        'state__in=["on", "waiting"]',
        'state__in=["on"]',
        BILLING,
    ),
    Fault(
        "a team with predictions in flight is deleted",
        "billing/budgets/tree.py",
        "if BudgetNode.objects.get(pk=node.pk).held_nano_usd:",
        "if BudgetNode.objects.get(pk=node.pk).held_nano_usd < 0:",
        BILLING,
    ),
    Fault(
        "balances are not locked for a payout",
        "billing/payouts/books.py",
        'cursor.execute("SELECT billing_lock_account(%s)", [account.pk])',
        'cursor.execute("SELECT %s", [account.pk])',
        BILLING,
    ),
    Fault(
        "free amounts that were used with another model count in a quote",
        "marketplace/gateway/quotes.py",
        "organization_id = ANY (billing_kin(%s)) AND model_id = %s\n",
        "organization_id = ANY (billing_kin(%s)) AND (true OR model_id = %s)\n",
        GATEWAY,
    ),
    Fault(
        "a stream must begin within the shorter of the class's least and three times the prediction",
        "marketplace/gateway/patience.py",
        "begin = max(BEGIN_SECONDS",
        "begin = min(BEGIN_SECONDS",
        GATEWAY,
    ),
    Fault(
        "the age of a cached row counts from the end of its load",
        "marketplace/gateway/cache.py",
        "self._entries[key] = _Entry(value, now, now)",
        "self._entries[key] = _Entry(value, self._clock(), now)",
        GATEWAY,
    ),
    Fault(
        "a sequence is preempted for better classes without end",
        "serving/scheduler/preemption.py",
        "if targets.rank(s, now) > wants and s.preemptions < MAX_PREEMPTIONS]",
        "if targets.rank(s, now) > wants]",
        SCHEDULER,
    ),
    Fault(
        "a sequence ages after twice the time of its class",
        "serving/scheduler/slo.py",
        "aged = now - sequence.arrival >= self.of(sequence).max_wait",
        "aged = now - sequence.arrival >= 2 * self.of(sequence).max_wait",
        SCHEDULER,
    ),
    Fault(
        "one request too few of each other tenant is expected to be served before",
        "serving/scheduler/admission.py",
        "count = min(count, own + 1)",
        "count = min(count, own)",
        SCHEDULER,
    ),
    Fault(
        "waiting and loading are added and not overlapped",
        "serving/scheduler/admission.py",
        "return max(self.queue, self.load) + self.prefill",
        "return self.queue + self.load + self.prefill",
        SCHEDULER,
    ),
    Fault(
        "a prompt that fills its blocks gets one too many",
        "serving/kv/pool.py",
        "return -(-tokens // self.block_size)",
        "return tokens // self.block_size + 1",
        KV,
    ),
    Fault(
        "a token exactly at the floor of min-p is dropped",
        "serving/sampling/draw.py",
        "& (values >= floors)",
        "& (values > floors)",
        SAMPLING,
    ),
)

ALL = (*OWN, *SURVIVED_ONCE)
