"""The playground for several models side by side, and prompts that are kept with the versions they were tried on."""

from __future__ import annotations

from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from billing.selectors import wallet
from marketplace.accounts.errors import Refusal
from marketplace.catalog import selectors
from marketplace.prompts.services import MAX_MODELS, Texts, delete_prompt, keep_prompt, open_prompt, prompts_of
from marketplace.web.acting import Acting, member_page
from marketplace.web.forms import PlainForm
from marketplace.web.playground import lanes_named, settings_of
from marketplace.web.refusals import show_as_message

MOST_SUGGESTED = 100


class KeepForm(PlainForm):
    """The fields of a prompt to keep; the models are those of the page."""

    name = forms.CharField(max_length=100)
    message = forms.CharField(max_length=20_000, strip=False)
    system = forms.CharField(max_length=20_000, strip=False, required=False)


@require_safe
@never_cache
@member_page("predict")
def playground(request: HttpRequest, acting: Acting) -> HttpResponse:
    """One message to up to four models; `?prompt=` begins with a kept one, `?model=` names the models."""
    kept = None
    if asked := request.GET.get("prompt"):
        kept = open_prompt(organization=acting.organization, prompt_id=_uuid(asked))
        if kept is None:
            raise Http404("no such prompt")
    names = [name.strip()[:128] for name in request.GET.getlist("model") if name.strip()][:MAX_MODELS]
    names = list(dict.fromkeys(names)) or (kept.row.model_names if kept else [])
    lanes, missing = lanes_named(names, viewer=acting.organization)
    context = {
        **settings_of(lanes),
        "names": [*names, *[""] * (MAX_MODELS - len(names))],
        "missing": missing,
        "suggested": [model.full_name for model in selectors.published_models()[:MOST_SUGGESTED]],
        "kept_prompts": prompts_of(organization=acting.organization),
        "kept": kept,
        "user_message": kept.texts.message if kept else "",
        "system_message": kept.texts.system if kept else "",
        "wallet": wallet(acting.organization),
        "save_url": f"{reverse('web:keep_prompt')}?{_query(names)}" if lanes else "",
    }
    return render(request, "web/playground.html", context)


@require_POST
@member_page("predict")
def keep(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Keep the form's texts for the models in the address, each at the version that it means now."""
    names = request.GET.getlist("model")[:MAX_MODELS]
    back = f"{reverse('web:playground')}?{_query(names)}"
    form = KeepForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing was kept: a kept prompt needs a message and a name of 1 to 100 characters.")
        return redirect(back)
    texts = Texts(form.cleaned_data["message"], form.cleaned_data["system"])
    try:
        kept = keep_prompt(
            organization=acting.organization,
            by=acting.user,
            name=form.cleaned_data["name"],
            texts=texts,
            models=[_pinned(name, acting) for name in names],
        )
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was kept.")
        return redirect(back)
    messages.success(request, f"Kept “{kept.row.name}” for {', '.join(kept.row.model_names)}.")
    return redirect(f"{reverse('web:playground')}?prompt={kept.row.pk}")


@require_POST
@member_page("predict")
def delete(request: HttpRequest, acting: Acting, prompt_id: UUID) -> HttpResponse:
    """Delete a kept prompt."""
    if not delete_prompt(organization=acting.organization, prompt_id=prompt_id):
        raise Http404("no such prompt")
    messages.success(request, "The prompt was deleted.")
    return redirect("web:playground")


def _pinned(name: str, acting: Acting) -> str:
    """Return the name with the number of the version that it means now."""
    if "@" in name:
        return name
    organization, _, slug = name.partition("/")
    model = selectors.visible_model(org_slug=organization, slug=slug, viewer=acting.organization)
    newest = model.facts.newest if model else None
    return name if newest is None else f"{name}@{newest.number}"


def _query(names: list[str]) -> str:
    query = QueryDict(mutable=True)
    query.setlist("model", names)
    return query.urlencode()


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Http404("no such prompt") from None
