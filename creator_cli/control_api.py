"""The operations of the control API that creators use, one method each. All raise the errors of HttpClient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from creator_cli.custody_records import Holder, Release
from creator_cli.errors import ApiError, CliError
from creator_cli.eval_records import EvalRun, EvalSet
from creator_cli.http_client import Answer, Body, HttpClient
from creator_cli.names import ModelName
from creator_cli.precisions import Precision
from creator_cli.reading import Reader
from creator_cli.records import Base, ListedModel, Me, Price, Version
from creator_cli.reviews import Review
from creator_cli.rollouts import Served
from protocol.encoding import encode_base64url

_MAX_PAGES = 1000


class ControlApi:
    """`/api/v1` of the platform at `url`, with `token` if there is one."""

    def __init__(self, url: str, token: str | None, *, patient: bool = True) -> None:
        self.url = url
        self._http = HttpClient(url, token, patient=patient)

    def __enter__(self) -> ControlApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post_form(self, path: str, fields: Mapping[str, str]) -> tuple[int, Any]:
        """Send a form of the login; see HttpClient."""
        return self._http.post_form(path, fields)

    def trade_token(self, device_token: str) -> str:
        """Trade the token of a confirmed login for an API key, which the answer shows once."""
        return Reader(self.post("tokens", {"device_token": device_token}).json(), "token").text("key")

    def me(self) -> Me:
        """Return the owner of the token."""
        return Me.parse(self._http.request("GET", "me").json())

    def delete_key(self, key_id: UUID) -> None:
        """Revoke an API key."""
        self._http.request("DELETE", f"keys/{key_id}")

    def register_signing_key(self, organization: str, public_key: bytes) -> UUID:
        """Register the creator's public key; again is once. Returns its id."""
        payload = {"public_key": encode_base64url(public_key)}
        answer = self.post(f"organizations/{organization}/signing-keys", payload, repeatable=True)
        return Reader(answer.json(), "signing key").uuid("id")

    def intake_key(self) -> bytes:
        """Return the public key that data keys are wrapped to. Needs no token."""
        return Reader(self._http.request("GET", "vault/intake-key").json(), "intake key").data("public_key")

    def bases(self) -> list[Base]:
        """List the base models, newest first. Needs no token."""
        return [Base.parse(item) for item in self.pages("bases")]

    def models(self) -> list[ListedModel]:
        """List the creator's own models, newest first."""
        return [ListedModel.parse(item) for item in self.pages("models", mine="true")]

    def model(self, name: ModelName) -> ListedModel | None:
        """Return a listing, or None if there is none that the caller may see."""
        try:
            return ListedModel.parse(self._http.request("GET", f"models/{name}").json())
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def model_id(self, name: ModelName) -> UUID:
        """Return the id of a listing."""
        return Reader(self._http.request("GET", f"models/{name}").json(), "model").uuid("id")

    def create_model(self, payload: Mapping[str, Any]) -> ListedModel:
        """Create a listing."""
        return ListedModel.parse(self.post("models", payload).json())

    def update_model(self, name: ModelName, payload: Mapping[str, Any]) -> ListedModel:
        """Change fields of a listing."""
        answer = self._http.request("PATCH", f"models/{name}", payload=payload, repeatable=True)
        return ListedModel.parse(answer.json())

    def prices(self, name: ModelName) -> list[Price]:
        """List every price of a model, announced ones too, the last to begin first."""
        return [Price.parse(item) for item in self.pages(f"models/{name}/prices")]

    def set_price(self, name: ModelName, payload: Mapping[str, Any]) -> Price:
        """Set or announce a price."""
        return Price.parse(self.post(f"models/{name}/prices", payload).json())

    def start_version(self, name: ModelName, *, signing_key_id: UUID, size: int, changelog: str) -> Version:
        """Open the upload of the next version."""
        payload = {"signing_key_id": str(signing_key_id), "package_size": size, "changelog": changelog}
        return Version.parse(self.post(f"models/{name}/versions", payload).json())

    def versions(self, name: ModelName) -> Iterator[Version]:
        """Iterate over the versions of one of the creator's models, newest first, page by page."""
        return (Version.parse(item) for item in self.pages(f"models/{name}/versions"))

    def version(self, version_id: UUID) -> Version:
        """Return a version."""
        return Version.parse(self._http.request("GET", f"versions/{version_id}").json())

    def upload_offset(self, address: str) -> int:
        """Return how many bytes of a package have arrived at the address of its upload."""
        return _offset(self._http.request("HEAD", address))

    def upload_chunk(self, address: str, *, offset: int, length: int, body: Body) -> int:
        """Send `length` bytes that start at `offset`, once; return the offset reached."""
        headers = {
            "Upload-Offset": str(offset),
            "Content-Type": "application/octet-stream",
            "Content-Length": str(length),
        }
        return _offset(self._http.request("PUT", address, body=body, headers=headers))

    def complete_version(self, version_id: UUID, *, digest: str, wrapped_data_key: bytes) -> Version:
        """Close the upload; again with the same digest changes nothing."""
        payload = {"digest": digest, "wrapped_data_key": encode_base64url(wrapped_data_key)}
        return self._act(version_id, "complete", payload)

    def start_eval_set(
        self, name: ModelName, *, signing_key_id: UUID, size: int, rows: int, scorer: Mapping[str, Any]
    ) -> EvalSet:
        """Open the upload of the model's next set of rows."""
        payload = {"signing_key_id": str(signing_key_id), "package_size": size, "rows": rows, "scorer": scorer}
        return EvalSet.parse(self.post(f"models/{name}/eval-sets", payload).json())

    def complete_eval_set(self, set_id: UUID, *, digest: str, wrapped_data_key: bytes) -> EvalSet:
        """Close the upload; again with the same digest changes nothing."""
        payload = {"digest": digest, "wrapped_data_key": encode_base64url(wrapped_data_key)}
        return EvalSet.parse(self.post(f"eval-sets/{set_id}/complete", payload, repeatable=True).json())

    def eval_sets(self, name: ModelName) -> Iterator[EvalSet]:
        """Iterate over the sets of one of the creator's models, newest first."""
        return (EvalSet.parse(item) for item in self.pages(f"models/{name}/eval-sets"))

    def eval_quote(self, set_id: UUID, version: int | None, guard: str | None = None) -> tuple[int, int]:
        """Return the version that would be measured, or guarded, and the run's worst case in nano-dollars."""
        params = ({} if version is None else {"version": str(version)}) | ({} if guard is None else {"guard": guard})
        reader = Reader(self._http.request("GET", f"eval-sets/{set_id}/quote", params=params).json(), "quote")
        return reader.integer("version"), reader.integer("worst_case_nano_usd")

    def start_eval_run(
        self, set_id: UUID, *, version: int, budget_nano_usd: int | None, guard: str | None = None
    ) -> EvalRun:
        """Begin a run. Not repeated: a second one would be refused while the first is open."""
        payload: dict[str, Any] = {"version": version}
        payload |= {} if budget_nano_usd is None else {"budget_nano_usd": budget_nano_usd}
        payload |= {} if guard is None else {"guard": guard}
        return EvalRun.parse(self.post(f"eval-sets/{set_id}/runs", payload).json())

    def model_guard(self, name: ModelName) -> dict[str, Any]:
        """Return the guard of one of the creator's models as the API says it."""
        return dict(self._http.request("GET", f"models/{name}/guard").json())

    def eval_run(self, run_id: UUID) -> EvalRun:
        """Return a run."""
        return EvalRun.parse(self._http.request("GET", f"eval-runs/{run_id}").json())

    def eval_runs(self, name: ModelName) -> Iterator[EvalRun]:
        """Iterate over the runs of one of the creator's models, newest first."""
        return (EvalRun.parse(item) for item in self.pages(f"models/{name}/eval-runs"))

    def evaluations(self, name: ModelName) -> Iterator[dict[str, Any]]:
        """Iterate over the figures of a model, newest first. Needs no token."""
        return iter(self.pages(f"models/{name}/evaluations"))

    def publish_version(self, version_id: UUID) -> Version:
        """Offer a verified version for sale. Idempotent."""
        return self._act(version_id, "publish")

    def appeal_review(self, review_id: UUID, *, text: str) -> Review:
        """Appeal a refusal, once."""
        return Review.parse(self.post(f"reviews/{review_id}/appeal", {"text": text}).json())

    def retire_version(self, version_id: UUID) -> Version:
        """Take a version off sale. Idempotent."""
        return self._act(version_id, "retire")

    def revoke_version(self, version_id: UUID, *, reason: str) -> Version:
        """Pull the kill switch. Idempotent."""
        return self._act(version_id, "revoke", {"reason": reason})

    def precisions(self, name: ModelName) -> Iterator[Precision]:
        """Iterate over the versions of one of the creator's models on checkpoints, newest first."""
        return (Precision.parse(item) for item in self.pages(f"models/{name}/precisions"))

    def set_leave(self, version_id: UUID, *, checkpoint: str, leave: str) -> Precision:
        """Say whether a version may be served on a checkpoint. Idempotent."""
        payload = {"checkpoint": checkpoint, "leave": leave}
        answer = self._http.request("PUT", f"versions/{version_id}/leave", payload=payload, repeatable=True)
        return Precision.parse(answer.json())

    def served(self, name: ModelName) -> Served:
        """Return the version that the model's name means, and its rollouts."""
        return Served.parse(self._http.request("GET", f"models/{name}/rollout").json())

    def set_rollout(self, version_id: UUID, *, percent: int) -> Served:
        """Give a version to `percent` of the customers. Not repeated: a second 0 would be refused."""
        return Served.parse(self.post(f"versions/{version_id}/rollout", {"percent": percent}).json())

    def make_default(self, version_id: UUID) -> Served:
        """Let the model's name mean this version. Idempotent."""
        return Served.parse(self.post(f"versions/{version_id}/make-default", {}, repeatable=True).json())

    def deprecate_version(self, version_id: UUID, *, ends_at: str, replacement: int | None) -> dict[str, Any]:
        """Announce the end of a version. Idempotent."""
        payload = {"ends_at": ends_at, "replacement": replacement}
        return self._ending(self.post(f"versions/{version_id}/deprecate", payload, repeatable=True).json())

    def keep_version(self, version_id: UUID) -> dict[str, Any]:
        """Take the announced end of a version back."""
        return self._ending(self._http.request("DELETE", f"versions/{version_id}/deprecate").json())

    def custody(self, name: ModelName) -> tuple[dict[str, Any], list[Release]]:
        """Return the answer with checkpoint and vault key, and its releases, newest first."""
        value = self._http.request("GET", f"models/{name}/custody").json()
        releases = [Release.parse(item) for item in Reader(value, "custody").items("releases")]
        return value, releases

    def holders(self, version_id: UUID) -> list[Holder]:
        """Return the replicas that were lent the version's key, and whether each said that it is gone."""
        value = self._http.request("GET", f"versions/{version_id}/holders").json()
        return [Holder.parse(item) for item in Reader(value, "holders").items("holders")]

    def custody_chain(self) -> dict[str, Any]:
        """Return the organization's whole chain in the form of an export."""
        value = self._http.request("GET", "custody").json()
        Reader(value, "custody").items("releases")
        return dict(value)

    def earnings(self) -> dict[str, Any]:
        """Return earnings in total, by day and by model, in nano-dollars."""
        first, *others = (Reader(answer, "earnings") for answer in self.answers("earnings", limit="1000"))
        found = first.whole()
        first.integer("total_nano_usd")
        found.pop("next", None)
        for group in ("by_day", "by_model"):
            found[group] = [line for page in (first, *others) for line in page.items(group)]
        return found

    def receipt(self, prediction_id: UUID) -> bytes:
        """Return the receipt document of a prediction that the organization paid for."""
        return self._http.request("GET", f"receipts/{prediction_id}").body

    def fleet(self, model: str | None = None) -> dict[str, Any]:
        """Return pools, replicas and events of the platform's fleet, for its staff; with `model`, its adapters too."""
        params = {} if model is None else {"model": model}
        return Reader(self._http.request("GET", "platform/fleet", params=params).json(), "fleet").whole()

    def receipt_keys(self) -> bytes:
        """Return the platform's key file of receipts. Needs no token."""
        return self._http.request("GET", "receipts/keys").body

    def payouts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the way to the next payout, and the payouts, newest first."""
        overview = self._http.request("GET", "payouts/overview").json()
        Reader(overview, "payouts").integer("payable_nano_usd")
        return dict(overview), list(self.pages("payouts"))

    def start_payout(self, amount_cents: int | None) -> dict[str, Any]:
        """Pay out this amount, or everything that is payable. Not repeated: a lost answer shows in the list."""
        value = self.post("payouts", {} if amount_cents is None else {"amount_cents": amount_cents}).json()
        Reader(value, "payout").integer("amount_cents")
        return dict(value)

    def open_payout_setup(self) -> str:
        """Open Stripe's page for details and bank account; return its address."""
        return Reader(self.post("payouts/setup", {}).json(), "payout setup").text("url")

    def _act(self, version_id: UUID, verb: str, payload: Mapping[str, Any] | None = None) -> Version:
        return Version.parse(self.post(f"versions/{version_id}/{verb}", payload or {}, repeatable=True).json())

    @staticmethod
    def _ending(value: Any) -> dict[str, Any]:
        Version.parse(value)
        return {"ends_at": value.get("ends_at"), "replacement": value.get("replacement")}

    def get(self, path: str, **params: str) -> Answer:
        """Send a GET."""
        return self._http.request("GET", path, params=params)

    def post(self, path: str, payload: Mapping[str, Any], *, repeatable: bool = False) -> Answer:
        """Send a JSON document; `repeatable` as HttpClient says."""
        return self._http.request("POST", path, payload=payload, repeatable=repeatable)

    def pages(self, path: str, **params: str) -> Iterator[Any]:
        """Iterate over the rows of a list, page by page."""
        for answer in self.answers(path, **{"limit": "200", **params}):
            yield from Reader(answer, path).items("results")

    def answers(self, path: str, **params: str) -> Iterator[Any]:
        """Iterate over the answers that are a list's pages; `limit` is how many rows each has."""
        query = dict(params)
        for _ in range(_MAX_PAGES):
            answer = self._http.request("GET", path, params=query).json()
            page = Reader(answer, path)
            yield answer
            if not page.has("next"):
                return
            # The cursor alone: the token goes to the URL that the user gave, wherever the answer points.
            cursor = parse_qs(urlsplit(page.text("next")).query).get("cursor")
            if not cursor:
                return
            query["cursor"] = cursor[0]
        raise CliError(f"{path}: more than {_MAX_PAGES} pages")


def _offset(answer: Answer) -> int:
    text = answer.headers.get("Upload-Offset", "")
    if not (text.isascii() and text.isdigit()):
        raise CliError("the platform did not name the offset of the upload")
    return int(text)
