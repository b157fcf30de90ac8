"""Batches: upload a file, see what it will cost, start it, watch it, fetch what came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts.errors import NotFound, Refusal
from marketplace.jobs import batches as services
from marketplace.jobs import files, selectors
from marketplace.jobs.content import read_chunk
from marketplace.jobs.errors import BadLines, TooManyModels
from marketplace.jobs.models import Batch, File
from marketplace.jobs.quotes import quote_file
from marketplace.vault.answer_keys import AnswerCipher
from marketplace.vault.ciphers import cipher_of
from marketplace.web.acting import Acting, member_page
from marketplace.web.batch_forms import BatchFileForm, StartBatchForm
from marketplace.web.refusals import show_as_message, show_in_form

PAGE_SIZE = 20
MOST_FILES = 50  # that the page lists; the API lists them all


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("predict")
def batches(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Every batch and the files of requests, and a form for the next file."""
    form = BatchFileForm(request.POST or None, request.FILES or None)
    bad_lines: BadLines | None = None
    if request.method == "POST" and form.is_valid():
        found = form.cleaned_data["file"]
        try:
            file = files.store_file(organization=acting.organization, name=found.name, content=found.read())
        except BadLines as refusal:
            bad_lines = refusal
            form.add_error("file", f"{refusal.count:,} lines break a rule. Nothing was stored.")
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            return redirect("web:batch_file", file_id=file.pk)
    mine = selectors.files_of(acting.organization.pk)
    context = {
        "page": Paginator(selectors.batches_of(acting.organization.pk), PAGE_SIZE).get_page(request.GET.get("page")),
        "files": mine.filter(purpose=File.Purpose.BATCH)[:MOST_FILES],
        "form": form,
        "bad_lines": bad_lines,
        "too_large": "too-large" in request.GET,
    }
    return render(request, "web/batches.html", context, status=400 if request.method == "POST" else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("predict")
def batch_file(request: HttpRequest, acting: Acting, file_id: UUID) -> HttpResponse:
    """A file of requests with the cost of its batch; POST starts it."""
    file = _owned_file(acting, file_id)
    if file.purpose != File.Purpose.BATCH:
        raise Http404("no file of requests")
    try:
        quote = quote_file(organization=acting.organization, file=file)
    except TooManyModels as refusal:
        show_as_message(request, refusal, prefix="This file cannot be a batch:")
        return redirect("web:batches")
    form = StartBatchForm.for_quote(quote, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            batch = services.create_batch_with_purse(
                organization=acting.organization,
                input_file_id=file.pk,
                budget_nano_usd=form.budget_nano_usd(),
                created_by=acting.user,
            )
        except Refusal as refusal:
            show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        else:
            return redirect("web:batch", batch_id=batch.pk)
    context = {"file": file, "quote": quote, "form": form}
    return render(request, "web/batch_file.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@member_page("predict")
def delete_file(request: HttpRequest, acting: Acting, file_id: UUID) -> HttpResponse:
    """Delete a file."""
    try:
        files.delete_file(organization_id=acting.organization.pk, file_id=file_id)
    except NotFound:
        raise Http404("no such file") from None
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="The file stays.")
    else:
        messages.success(request, "The file is deleted.")
    return redirect("web:batches")


@require_safe
@never_cache
@member_page("predict")
def file_content(request: HttpRequest, acting: Acting, file_id: UUID) -> HttpResponse:
    """The content of a file, as a download."""
    file = _owned_file(acting, file_id)
    pieces = _pieces(cipher_of(acting.organization.pk), file)
    response = StreamingHttpResponse(pieces, content_type="application/jsonl")
    response.headers["Content-Disposition"] = f'attachment; filename="{file.public_id}.jsonl"'
    response.headers["Content-Length"] = str(file.bytes)
    return response  # type: ignore[return-value]


@require_safe
@never_cache
@member_page("predict")
def batch(request: HttpRequest, acting: Acting, batch_id: UUID) -> HttpResponse:
    """One batch."""
    return render(request, "web/batch.html", _context(_owned(acting, batch_id)))


@require_safe
@never_cache
@member_page("predict")
def progress(request: HttpRequest, acting: Acting, batch_id: UUID) -> HttpResponse:
    """The live part of the page alone, for htmx."""
    return render(request, "web/parts/batch_progress.html", _context(_owned(acting, batch_id)))


@require_POST
@member_page("predict")
def cancel(request: HttpRequest, acting: Acting, batch_id: UUID) -> HttpResponse:
    """Stop a batch."""
    try:
        services.cancel_batch(batch=_owned(acting, batch_id), actor=acting.actor)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was stopped.")
    return redirect("web:batch", batch_id=batch_id)


async def _pieces(cipher: AnswerCipher, file: File) -> AsyncIterator[bytes]:
    number = 0
    while (piece := await sync_to_async(partial(read_chunk, cipher, file, number))()) is not None:
        yield piece
        number += 1


def _owned(acting: Acting, batch_id: UUID) -> Batch:
    try:
        return selectors.batch_of(acting.organization.pk, batch_id)
    except NotFound:
        raise Http404("no such batch") from None


def _owned_file(acting: Acting, file_id: UUID) -> File:
    try:
        return selectors.file_of(acting.organization.pk, file_id)
    except NotFound:
        raise Http404("no such file") from None


def _context(row: Batch) -> dict[str, object]:
    now = [one for one in (row.output_file_id, row.error_file_id, row.input_file_id) if one]
    kept = set(selectors.files_of(row.organization_id).filter(pk__in=now).values_list("pk", flat=True))
    return {
        "batch": row,
        "percent": 100 * row.done // row.total if row.total else 0,
        "has_output": row.output_file_id in kept,
        "has_errors": row.error_file_id in kept,
        "has_input": row.input_file_id in kept,
    }
