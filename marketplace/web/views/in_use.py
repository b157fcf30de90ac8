"""A creator's page of a model in use, and the thresholds of its alarms."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from marketplace.accounts.errors import Refusal
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model, Version
from marketplace.watch import selectors, services
from marketplace.watch.blocks import LEAST_PAYERS, LEAST_REQUESTS
from marketplace.watch.drift import ALERT, BASELINE_CALLS, LOOK
from marketplace.watch.rules import METRICS
from marketplace.web import use_charts
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.forms import PlainForm
from marketplace.web.refusals import show_in_form

_HELP = {
    "errors": "Percent of requests that end with a status of 500 or more.",
    "latency": "Milliseconds within which 95 of 100 answers are done.",
    "valid": "Percent of calls whose answer came to its own end, at least. For contracts with an output schema.",
    "drift": f"PSI against the first {BASELINE_CALLS:,} calls: {LOOK:g} is worth a look, {ALERT:g} is a shift.",
    "spend": "Dollars that customers pay in an hour.",
}


class AlarmsForm(PlainForm):
    """The thresholds of a model; an empty field turns its alarm off."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        for name, metric in METRICS.items():
            self.fields[name] = forms.FloatField(label=metric.label, required=False, help_text=_HELP[name])


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("read", changes="publish")
def in_use(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Calls, errors, latency, lengths, answers, drift and thumbs of one version; POST sets thresholds."""
    model = own_model(acting, slug)
    lines = selectors.alarms_of(model, None)
    form = AlarmsForm(request.POST or None, initial={line.metric.name: line.threshold for line in lines})
    if request.method == "POST" and form.is_valid():
        try:
            services.set_thresholds(model=model, values=form.cleaned_data)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "The alarms are set. They hold from the next hour on.")
            return redirect("web:in_use", slug=slug)
    return render(request, "web/in_use.html", _context(request, model, form), status=400 if form.errors else 200)


def _context(request: HttpRequest, model: Model, form: AlarmsForm) -> dict[str, object]:
    days = next((days for days in selectors.DAYS if str(days) == request.GET.get("days")), 7)
    versions = list(catalog.versions_of(model=model, published_only=False).exclude(published_at=None)[:100])
    wanted = request.GET.get("version")
    version = next((one for one in versions if str(one.number) == wanted), versions[0] if versions else None)
    context = {
        "model": model,
        "form": form,
        "days": days,
        "ranges": selectors.DAYS,
        "versions": versions,
        "version": version,
        "least_requests": LEAST_REQUESTS,
        "least_payers": LEAST_PAYERS,
        "baseline_calls": BASELINE_CALLS,
        "evaluation": model.facts.evaluation,
    }
    return context if version is None else context | _charts(version, days)


def _charts(version: Version, days: int) -> dict[str, object]:
    use = selectors.in_use(version, days=days)
    total, before = use.total, use.baseline
    milliseconds = {name: use.milliseconds(name, 0.95) for name in ("ttft", "duration")}
    return {
        "use": use,
        "calls": use_charts.block_bars(use.blocks, since=use.since, until=use.until),
        "latency": use_charts.histogram_bars(total.duration, (), "ms"),
        "first_token": use_charts.histogram_bars(total.ttft, (), "ms"),
        "prompts": use_charts.histogram_bars(total.prompt, before.prompt, "tokens"),
        "completions": use_charts.histogram_bars(total.completion, (), "tokens"),
        "answers": use_charts.answer_lines(use.labels, total.answers, before.answers),
        "drift": use_charts.drift_line(use.windows, since=use.since, until=use.until),
        "slowest": milliseconds,
        "finish": sorted(total.finish.items(), key=lambda one: -one[1]),
        "refused": sorted(total.refused.items(), key=lambda one: -one[1]),
        "firing": [line for line in use.alarms if line.is_firing],
        "thumbs": use.thumbs,
    }
