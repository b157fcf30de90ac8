"""The steps of a creator to a first sale: each with its state from the database and the command to copy."""

from __future__ import annotations

from dataclasses import dataclass

from allauth.account.models import EmailAddress
from django.urls import reverse

from billing.models import PayoutAccount
from marketplace.accounts.models import Organization, User
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.catalog.models import Evaluation, Model, Price, Version
from marketplace.catalog.selectors import bases
from marketplace.vault.models import SigningKey
from marketplace.web.snippets import StepCommands, build_step_commands

State = Version.State
_PUSHED = (State.VERIFYING, State.VERIFIED, State.IN_REVIEW, State.PUBLISHED, State.RETIRED, State.REVOKED)
MOST_LINES = 100
_SOLD = (State.PUBLISHED, State.RETIRED, State.REVOKED)  # is for sale, or was


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `waits`: everything is done, and the platform has the next word. Optional ones are not counted."""

    id: str
    title: str
    text: str
    is_done: bool
    commands: str = ""
    link: str = ""
    link_label: str = ""
    waits: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Checklist:
    """The steps in their order."""

    steps: tuple[Step, ...]

    @property
    def done(self) -> int:
        """Return how many of the needed steps are done."""
        return sum(step.is_done for step in self.steps if not step.is_optional)

    @property
    def needed(self) -> int:
        """Return how many steps there are without the optional ones."""
        return sum(not step.is_optional for step in self.steps)

    @property
    def next_id(self) -> str:
        """Return the id of the first needed step that is not done."""
        return next((step.id for step in self.steps if not step.is_done and not step.is_optional), "")


@dataclass(frozen=True, slots=True)
class _Facts:
    """The organization's way so far, as the database has it."""

    verified: bool
    signing_key: bool
    model: Model | None
    versions: frozenset[str]  # states
    priced: bool
    measured: bool
    paid_out_to: bool


def checklist_of(
    *, organization: Organization, user: User, site: str, wheel: str, may_account: bool
) -> Checklist | None:
    """Return what a creator has done and has to do; None once everything is done, and for the platform itself."""
    if organization.slug == PLATFORM_SLUG:
        return None
    facts = _facts(organization, user)
    commands = build_step_commands(
        site=site,
        wheel=wheel,
        organization=organization.slug,
        model=facts.model.slug if facts.model else None,
        line=_line_to_name(facts.model),
    )
    checklist = Checklist((*_command_steps(facts, commands), *_sale_steps(facts, commands, may_account=may_account)))
    return checklist if checklist.next_id else None


def _line_to_name(model: Model | None) -> str | None:
    """Return the base line that commands have to name, None where there is one alone: the model's, or the oldest."""
    references = list(bases()[:MOST_LINES])
    if len(references) < 2:
        return None
    return (model.base_model if model else references[-1]).line.name


def _facts(organization: Organization, user: User) -> _Facts:
    adapters = Model.objects.filter(organization=organization, kind=Model.Kind.ADAPTER)
    states = Version.objects.filter(model__in=adapters).values_list("state", flat=True).distinct().order_by("state")
    active = PayoutAccount.State.ACTIVE
    return _Facts(
        verified=EmailAddress.objects.filter(user=user, verified=True).exists(),
        signing_key=SigningKey.objects.filter(organization=organization).exists(),
        model=adapters.order_by("created_at").first(),
        versions=frozenset(states),
        priced=Price.objects.filter(model__in=adapters).exists(),
        measured=Evaluation.objects.filter(version__model__in=adapters).exists(),
        paid_out_to=PayoutAccount.objects.filter(organization=organization, state=active).exists(),
    )


def _command_steps(facts: _Facts, commands: StepCommands) -> tuple[Step, ...]:
    """Return the steps up to a version that is on the platform: mail, and the command on the creator's machine."""
    is_pushed = bool(facts.versions & set(_PUSHED))
    return (
        Step(
            "verify",
            "Verify your e-mail address",
            "Reviews and alerts go to it.",
            facts.verified,
            link=reverse("account_email"),
            link_label="Your addresses",
        ),
        Step(
            "install",
            "Install the command",
            "In an empty folder, on a machine with Python 3.11 or newer.",
            facts.signing_key,
            commands=commands.install,
        ),
        Step(
            "login",
            "Log in",
            "It shows a code, which you confirm in your browser, and makes the key that signs your weights.",
            facts.signing_key,
            commands=commands.login,
        ),
        Step(
            "check",
            "Check an adapter",
            "The first line writes an example to try it with. For a model of your own, put the two files of your LoRA "
            "adapter and your model.json into my-adapter instead.",
            is_pushed,
            commands=commands.check,
        ),
        Step(
            "push",
            "Push it",
            "The weights are encrypted before they leave your machine. A replica verifies them in a minute or so.",
            is_pushed,
            commands=commands.push,
        ),
    )


def _sale_steps(facts: _Facts, commands: StepCommands, *, may_account: bool) -> tuple[Step, ...]:
    """Return the steps on pages: price, publication, payouts; and the measurement, which nobody has to have."""
    page = reverse("web:my_model", kwargs={"slug": facts.model.slug}) if facts.model else ""
    in_review = State.IN_REVIEW in facts.versions
    return (
        Step(
            "price",
            "Set a price",
            "The model.json of the example has one; on the model's page you change it.",
            facts.priced,
            link=page and f"{page}#price",
            link_label="Its price",
        ),
        Step(
            "measure",
            "Have it measured",
            "Write a line of JSON for each test, with message and expected, into rows.jsonl. The platform asks your "
            "model and its base, and shows the accuracy on the model's page, where customers look for it. The calls "
            "are paid from your organization's wallet: usually less than a cent.",
            facts.measured,
            commands=commands.measure if facts.model else "",
            link=reverse("web:docs_page", kwargs={"name": "evals"}),
            link_label="Rows, and how answers are judged",
            is_optional=True,
        ),
        Step(
            "publish",
            "Publish",
            "A person looks at your first public model, and answers within one working day."
            if in_review
            else "A person looks at a new organization's first public model, within one working day.",
            bool(facts.versions & set(_SOLD)),
            link=page and f"{page}#versions",
            link_label="Its versions",
            waits=in_review,
        ),
        Step(
            "payouts",
            "Set up payouts",
            "Stripe asks for your bank account. Earnings are kept for you until then."
            if may_account
            else "An owner, an admin or a billing member of your organization does it.",
            facts.paid_out_to,
            link=reverse("web:payouts") if may_account else "",
            link_label="Payouts",
        ),
    )
