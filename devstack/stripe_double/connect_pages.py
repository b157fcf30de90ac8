"""The pages of Connect for browsers: onboarding and the dashboard of an Express account, without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from devstack.stripe_double.messages import JsonObject, Response
from devstack.stripe_double.pages import plain_page


def back_to(url: str) -> Response:
    """Send the browser back to the platform."""
    return Response(303, b"", {"location": url})


def onboarding_page(visit_id: str | None, name: str, banks: Mapping[str, str | None]) -> Response:
    """Return the form of one visit; 404 for None."""
    if visit_id is None:
        return plain_page(404, "No such page", "<h1>There is no such onboarding page.</h1>")
    options = "".join(
        f'<option value="{escape(number)}">{escape(number)} ({escape(failure or "takes payouts")})</option>'
        for number, failure in banks.items()
    )
    return plain_page(
        200,
        "Set up payouts · test double",
        f"""<h1>Set up payouts for</h1>
<p class="amount">{escape(name)}</p>
<form method="post" action="/connect/onboarding/{escape(visit_id)}">
<p><label for="account_number">Bank account (test numbers)</label><br>
<select id="account_number" name="account_number">{options}</select></p>
<p><label for="identity">Identity</label><br>
<select id="identity" name="identity"><option value="clear">is verified at once</option>
<option value="unclear">needs one more document</option></select></p>
<button class="pay" id="finish" name="action" value="finish">Agree and submit</button>
<button class="cancel" id="later" name="action" value="later">Save for later</button></form>""",
    )


def dashboard_page(account: JsonObject | None, payouts: list[JsonObject]) -> Response:
    """Return what the owner of an account sees; 404 for None."""
    if account is None:
        return plain_page(404, "No such page", "<h1>There is no such account.</h1>")
    rows = "".join(
        f"<dt>{escape(payout['status'])}</dt><dd>${payout['amount'] // 100:,}.{payout['amount'] % 100:02d}</dd>"
        for payout in payouts
    )
    title = escape(account["business_profile"]["name"] or account["id"])
    return plain_page(200, "Express dashboard · test double", f"<h1>Payouts of {title}</h1><dl>{rows}</dl>")
