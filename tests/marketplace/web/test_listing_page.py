"""The pages of a listing: words, preview, two editors at once, logo, admission, and the creator's first steps."""

from __future__ import annotations

import re
from io import BytesIO

from allauth.account.models import EmailAddress
from django.core.files.uploadedfile import SimpleUploadedFile
from PIL import Image

from billing.models import PayoutAccount
from marketplace.access.models import AccessRequest, LicenceAcceptance
from marketplace.accounts.audit import entries_of
from marketplace.accounts.models import User
from marketplace.catalog.models import Logo, Model
from marketplace.catalog.services import update_model
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing.models import Review
from marketplace.teams.pictures import SIDE
from marketplace.vault.models import SigningKey
from tests.marketplace.catalog.factories import add_member
from tests.marketplace.web.conftest import World
from tests.marketplace.web.test_access import assert_clean

PAGE = "/dashboard/models/transactions/listing"
MODEL = "/models/ledgerline/transactions"


def values(page: str) -> dict[str, str]:
    """Return the fields that a browser would send of the listing's form, as it stands."""
    form = page[page.index('id="listing-form"') : page.index('aria-labelledby="logo"')]
    found = dict(re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', form))
    found |= {name: text.lstrip("\n") for name, text in re.findall(r'<textarea name="([^"]+)"[^>]*>([^<]*)<', form)}
    for name, options in re.findall(r'<select name="([^"]+)"[^>]*>(.*?)</select>', form, re.DOTALL):
        chosen = re.search(r'value="([^"]*)"\s+selected', options) or re.search(r'value="([^"]*)"', options)
        found[name] = chosen[1] if chosen else ""
    return {
        name: text.replace("&quot;", '"').replace("&#x27;", "'") for name, text in found.items() if name != "preview"
    }


def picture(form: str, size: tuple[int, int] = (600, 300)) -> bytes:
    """A file of this format, with what else a JPEG may hold."""
    out = BytesIO()
    Image.new("RGB", size, (180, 90, 40)).save(out, form, **({"comment": b"secret"} if form == "JPEG" else {}))
    return out.getvalue()


def test_words_are_edited_and_who_did_it_is_recorded(world: World) -> None:
    client = world.client(world.creator)
    page = client.get(PAGE)
    assert_clean(page)
    sent = values(page.content.decode())
    assert sent["title"] == "Ledgerline Transactions" and sent["tags"] == "banking, classification"
    before = Model.objects.get(pk=world.model.pk)
    assert client.post(PAGE, sent).status_code == 302
    world.model.refresh_from_db()
    for name in ("card_markdown", "tags", "example_messages", "licence_text", "industry"):
        assert getattr(world.model, name) == getattr(before, name), f"{name} as it was: browsers send CR LF"
    assert not entries_of(organization=world.seller).filter(act="listing.changed").exists()
    sent = values(client.get(PAGE).content.decode())
    sent |= {"industry": "Banking", "tags": "json, , Spending", "example_2_content": "Rent April", "licence": "MIT"}
    sent |= {"licence_required": "on", "gated": "on", "card_markdown": "# New\r\n\r\ntext"}
    assert "page of the model says it now" in client.post(PAGE, sent, follow=True).content.decode()
    world.model.refresh_from_db()
    assert (world.model.industry, world.model.tags, world.model.licence) == ("Banking", ["json", "spending"], "MIT")
    assert world.model.card_markdown == "# New\n\ntext" and world.model.licence_required and world.model.gated
    assert [one["content"] for one in world.model.example_messages][-1] == "Rent April"
    entry = entries_of(organization=world.seller).get(act="listing.changed")
    assert entry.user_id == world.creator.pk and entry.subject == "ledgerline/transactions"
    assert set(entry.data["fields"].split()) == {
        *("industry", "tags", "example_messages", "licence", "licence_required", "gated", "card_markdown")
    }


def test_bad_input_and_a_preview_lose_nothing(world: World) -> None:
    client = world.client(world.creator)
    sent = values(client.get(PAGE).content.decode())
    wrong = sent | {"title": "", "card_markdown": "**mine** <script>x</script>", "licence": "own", "gated": "on"}
    answer = client.post(PAGE, wrong)
    text = answer.content.decode()
    assert answer.status_code == 400 and "required" in text and "**mine** &lt;script&gt;" in text
    assert "<strong>mine</strong>" in text, "the preview shows what was written"
    shown = client.post(PAGE, sent | {"card_markdown": "**mine**", "summary": "Kept.", "preview": "yes"})
    text = shown.content.decode()
    assert (
        shown.status_code == 200 and "<strong>mine</strong>" in text and ">Kept.</textarea>" in text.replace("\n", "")
    )
    part = client.post(f"{PAGE}/preview", {"card_markdown": "[a](javascript:x) *live*"})
    assert "<em>live</em>" in part.content.decode() and "href" not in part.content.decode()
    assert client.post(PAGE, sent | {"licence": "own"}).status_code == 400
    assert client.post(PAGE, sent | {"seen": "yesterday"}).status_code == 400
    world.model.refresh_from_db()
    assert world.model.summary != "Kept." and not world.model.gated
    for user in (world.consumer, world.stranger):
        assert world.client(user).post(PAGE, sent).status_code == 404
        assert world.client(user).post(f"{PAGE}/preview", {}).status_code == 404


def test_two_editors_at_once_do_not_overwrite_each_other(world: World) -> None:
    colleague = add_member(world.seller, "developer")
    mine, theirs = world.client(world.creator), world.client(colleague)
    sent = values(mine.get(PAGE).content.decode())
    other = values(theirs.get(PAGE).content.decode())
    assert theirs.post(PAGE, other | {"summary": "Their summary."}).status_code == 302
    answer = mine.post(PAGE, sent | {"summary": "My summary.", "industry": "banking"})
    text = answer.content.decode()
    assert answer.status_code == 409 and colleague.email in text and "Their summary." in text and "My summary." in text
    assert_clean(answer)
    world.model.refresh_from_db()
    assert (world.model.summary, world.model.industry) == ("Their summary.", "finance")
    assert mine.post(PAGE, values(text)).status_code == 302, "now that it was seen"
    world.model.refresh_from_db()
    assert (world.model.summary, world.model.industry) == ("My summary.", "banking")


def test_a_change_of_a_public_listing_passes_the_gate(world: World) -> None:
    Review.objects.update(state=Review.State.WITHDRAWN)  # no person has approved anything yet
    client = world.client(world.creator)
    sent = values(client.get(PAGE).content.decode())
    page = client.post(
        PAGE, sent | {"title": "Other", "industry": "tax", "licence": "MIT"}, follow=True
    ).content.decode()
    assert "A person looks at title, licence first" in page and "A change of the listing is in review" in page
    world.model.refresh_from_db()
    assert (world.model.title, world.model.industry, world.model.licence) == ("Ledgerline Transactions", "tax", "")
    assert entries_of(organization=world.seller).get(act="listing.changed").data["in_review"] == "title licence"


def test_a_logo_is_drawn_anew_and_served_as_a_picture_alone(world: World) -> None:
    client = world.client(world.creator)
    for form in ("PNG", "JPEG", "WEBP"):
        file = SimpleUploadedFile("logo.svg", picture(form), "image/svg+xml")
        assert client.post("/dashboard/models/transactions/logo", {"logo": file}).status_code == 302
    world.model.refresh_from_db()
    path = f"{MODEL}/logo/{world.model.logo}.png"
    served = world.client(None).get(path)
    assert served.headers["Content-Type"] == "image/png" and served.headers["X-Content-Type-Options"] == "nosniff"
    assert "immutable" in served.headers["Cache-Control"] and "sandbox" in served.headers["Content-Security-Policy"]
    with Image.open(BytesIO(served.content)) as kept:
        assert kept.format == "PNG" and kept.size == (SIDE, SIDE // 2) and "comment" not in kept.info
    assert path in world.client(None).get(MODEL).content.decode()
    for name, data in {
        "an SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><script>x</script></svg>",
        "half a PNG": picture("PNG")[:60],
        "a GIF": picture("GIF"),
        "too wide": picture("PNG", (2_049, 1)),
        "too large": b"\x89PNG" + bytes(2**20),
        "nothing": b"",
    }.items():
        answer = client.post("/dashboard/models/transactions/logo", {"logo": SimpleUploadedFile("x.png", data)})
        assert answer.status_code == 400, name
    world.model.refresh_from_db()
    assert path.endswith(f"{world.model.logo}.png")
    assert world.client(None).get(f"{MODEL}/logo/{'0' * 64}.png").status_code == 404
    Model.objects.update(visibility="private")
    assert world.client(world.consumer).get(path).status_code == 404
    assert "private" in client.get(path).headers["Cache-Control"]
    client.post("/dashboard/models/transactions/logo", {"remove": "yes"})
    assert 'class="logo"' in client.get(MODEL).content.decode() and Model.objects.get().logo == ""
    assert 1 <= Logo.objects.count() <= 3


def test_a_new_listing_begins_on_the_web(world: World) -> None:
    client = world.client(world.creator)
    base = world.model.base_model.fingerprint
    data = {"title": "Invoices", "slug": "invoices", "base": base, "visibility": "unlisted"}
    assert client.post("/dashboard/new-model", data).headers["Location"] == "/dashboard/models/invoices/listing"
    found = Model.objects.get(slug="invoices")
    assert (found.organization, found.visibility) == (world.seller, "unlisted") and hasattr(found, "protection")
    for wrong in ({"slug": "invoices"}, {"slug": "No"}, {"base": "ab"}, {"title": ""}):
        answer = client.post("/dashboard/new-model", data | {"slug": "other"} | wrong)
        assert (answer.status_code == 400 and 'value="Invoices"' in answer.content.decode()) or wrong == {"title": ""}
    assert Model.objects.filter(organization=world.seller).count() == 2


def test_a_customer_asks_accepts_and_is_let_in_on_pages(world: World) -> None:
    update_model(
        model=world.model, text=ListingText(licence="own", licence_text="Be kind.", licence_required=True, gated=True)
    )
    buyer, creator = world.client(world.consumer), world.client(world.creator)
    page = buyer.get(MODEL)
    text = page.content.decode()
    assert_clean(page)
    assert "Ask for access" in text and "Be kind." in text and 'id="playground"' not in text
    assert buyer.post(f"{MODEL}/access", {"reason": "Our audit"}).status_code == 302
    digest = re.search(r'name="digest" value="([0-9a-f]{64})"', text)[1]
    buyer.post(f"{MODEL}/licence", {"digest": "0" * 64})
    assert not LicenceAcceptance.objects.exists()
    buyer.post(f"{MODEL}/licence", {"digest": digest})
    asked = AccessRequest.objects.get()
    page = creator.get("/dashboard/models/transactions/access")
    assert "Our audit" in page.content.decode() and "northbank" in page.content.decode()
    assert_clean(page)
    answer = f"/dashboard/models/transactions/access/{asked.pk}/grant"
    for user in (world.consumer, world.stranger):
        assert world.client(user).post(answer).status_code == 404
    creator.post(answer, {"text": "Welcome"})
    text = buyer.get(MODEL).content.decode()
    assert "has let northbank in" in text and "has accepted the licence" in text and 'id="playground"' in text
    viewer = world.client(add_member(world.buyer, "viewer"))
    assert viewer.post(f"{MODEL}/licence", {"digest": digest}).status_code == 403
    creator.post(f"/dashboard/models/transactions/access/{asked.pk}/revoke")
    assert 'id="playground"' not in buyer.get(MODEL).content.decode()


def _verify(*users: User, verified: bool) -> None:
    for address in EmailAddress.objects.filter(user__in=users):  # one by one: the rows are sealed
        address.verified = verified
        address.save()


def test_the_first_steps_follow_the_database_and_go_once_all_are_done(world: World) -> None:
    _verify(world.stranger, world.creator, verified=False)
    text = world.client(world.stranger).get("/dashboard/models").content.decode()
    assert "0 of 8 done" in text and "intarsia push my-adapter" in text and text.count('class="now"') == 1
    client = world.client(world.creator)
    SigningKey.objects.create(organization=world.seller, public_key=bytes(32))
    text = client.get("/dashboard/models").content.decode()
    assert "6 of 8 done" in text and "intarsia push" not in text, "mail and payouts are left"
    assert "6 of 8 steps are done" in client.get("/dashboard/").content.decode()
    _verify(world.creator, verified=True)
    PayoutAccount.objects.create(organization=world.seller, state="active", stripe_account_id="acct_1")
    for path in ("/dashboard/models", "/dashboard/"):
        assert "way to the first sale" not in client.get(path).content.decode()


def test_a_filter_is_a_chip_that_can_be_removed(world: World) -> None:
    client = world.client(None)
    for query in ("?industry=finance", "?licence=MIT", "?min_accuracy_bps=9000&max_ttft_ms=500"):
        page = client.get(f"/models/{query}").content.decode()
        assert page.count('class="chip"') == query.count("=") and "More filters" in page
        part = client.get(f"/models/{query}", headers={"HX-Request": "true"}).content.decode()
        assert 'hx-swap-oob="true"' in part and "<html" not in part
    assert "Ledgerline Transactions" in client.get("/models/?min_accuracy_bps=9000&tag=banking").content.decode()
    assert "Nothing matches" in client.get("/models/?max_call_nano_usd=1").content.decode()
