"""The platform as its users meet it: the README's example, the money, and faults of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from devstack.samples import SampleCreators
from devstack.state import REPOSITORY
from examples.score import is_right, read_heldout
from protocol.proofs.documents import verify_document
from protocol.proofs.keys import read_key_file
from tests.end_to_end.chaos.__main__ import run as unlucky
from tests.end_to_end.faults.audit import CLOSE_SECONDS, Verdict
from tests.end_to_end.faults.run import FaultRun
from tests.end_to_end.platform import Platform
from tests.end_to_end.second_base import FIRST, SECOND, ask_all, batch_of, compare, second_base, unavailable

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]  # the platform starts and measures its samples first

MODELS = {"finance": "ledgerline/transactions", "health": "carepath/triage", "telecom": "signalbox/tickets"}


def client(platform: Platform, **options: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{platform.url}/v1", api_key=platform.api_key, timeout=60, **options)  # type: ignore[arg-type]


def ask(platform: Platform, role: str, row: int = 0, **options: object) -> openai.types.chat.ChatCompletion:
    messages = read_heldout(role)[row]["messages"]
    return client(platform, max_retries=0).chat.completions.create(
        model=MODELS[role], messages=messages, max_tokens=24, temperature=0, **options
    )  # type: ignore[call-overload, no-any-return]


def settled(platform: Platform) -> dict[str, int]:
    return platform.operator.wait_until_settled(seconds=90)


def test_the_readme_example_runs_as_it_stands(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.S)
    exec(compile(block, "README.md", "exec"), {"BASE_URL": platform.url, "API_KEY": platform.api_key})
    text, cost = capsys.readouterr().out.rsplit(" ", 1)
    assert text.strip() and int(cost) > 0


def test_the_message_alone_gives_right_and_whole_answers_and_the_page_says_how_to_call(platform: Platform) -> None:
    jobs = [(role, row) for row in range(6) for role in MODELS]

    def message_alone(job: tuple[str, int]) -> openai.types.chat.ChatCompletion:
        role, row = job
        messages = read_heldout(role)[row]["messages"][-1:]
        return client(platform, max_retries=0).chat.completions.create(model=MODELS[role], messages=messages)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(message_alone, jobs))
    texts = [answer.choices[0].message.content or "" for answer in answers]
    for (role, row), text in zip(jobs, texts, strict=True):
        assert json.loads(text).keys() == read_heldout(role)[row]["expected"].keys()
    right = [is_right(text, read_heldout(role)[row]["expected"]) for (role, row), text in zip(jobs, texts, strict=True)]
    assert sum(right) / len(right) > 0.75
    for role, name in MODELS.items():
        (version,) = httpx.get(f"{platform.url}/api/v1/models/{name}/versions").json()["results"]
        contract, instructions = version["contract"], read_heldout(role)[0]["messages"][0]["content"]
        assert contract["messages"] == "single" and 0 < contract["instruction_tokens"] < len(instructions)
        assert contract["output_schema"]["required"] == list(read_heldout(role)[0]["expected"])
        page = httpx.get(f"{platform.url}/models/{name}").text
        assert "Schema of the answers" in page and instructions not in page and "max_tokens" not in page


def test_the_platform_measured_its_samples_by_itself_and_a_stranger_finds_the_same(platform: Platform) -> None:
    measured = {
        role: httpx.get(f"{platform.url}/api/v1/models/{name}").json()["evaluation"] for role, name in MODELS.items()
    }
    for role, least in {"finance": 66, "health": 69, "telecom": 59}.items():
        one = measured[role]
        assert one["rows"] == 72 and one["correct"] >= least > 40 + one["base_correct"]
        assert one["low"] < one["correct"] / 72 < one["high"]

    # As somebody does who has the rows and an API key, and nothing else of the platform's.
    rows = read_heldout("health")
    with ThreadPoolExecutor(24) as pool:
        answers = pool.map(
            lambda row: client(platform).chat.completions.create(model=MODELS["health"], messages=row["messages"][-1:]),
            rows,
        )
        texts = [answer.choices[0].message.content or "" for answer in answers]
    assert (
        sum(is_right(text, row["expected"]) for text, row in zip(texts, rows, strict=True))
        == (measured["health"]["correct"])
    )
    run = f"{platform.url}/evaluations/{measured['health']['run_id']}"
    assert f"{measured['health']['correct']} of 72 answers right" in httpx.get(run).text
    calls = httpx.get(f"{platform.url}/api/v1/evaluations/{measured['health']['run_id']}/calls").json()["results"]
    one = next(call for call in calls if call["base"] and call["receipt_sha256"])
    document = httpx.get(f"{run}/receipts/{one['prediction_id']}.json").content
    proven = verify_document(
        document, read_key_file(httpx.get(f"{platform.url}/.well-known/intarsia-keys.json").content)
    )
    assert proven.charge.adapter is None and proven.charge.model == MODELS["health"]


def test_different_adapters_answer_in_one_batch_each_with_its_own_knowledge(platform: Platform) -> None:
    jobs = [(role, row) for row in range(8) for role in MODELS]
    with ThreadPoolExecutor(24) as pool:
        results = list(pool.map(lambda job: ask(platform, *job), jobs))
    right = sum(
        is_right(result.choices[0].message.content or "", read_heldout(role)[row]["expected"])
        for result, (role, row) in zip(results, jobs, strict=True)
    )
    assert right / len(jobs) > 0.6
    gauge = httpx.get(f"{platform.info['replica_url']}/metrics").text
    found = re.search(r"max_adapters_in_one_batch\S* ([\d.]+)", gauge)
    assert found and float(found[1]) >= 2


def test_the_bill_is_the_sum_of_the_answers_and_the_ledger_sums_to_zero(platform: Platform) -> None:
    before = settled(platform)
    told = [ask(platform, role).usage.cost_nano_usd for role in MODELS for _ in range(2)]  # type: ignore[union-attr]
    after = settled(platform)
    assert after["charged_nano_usd"] - before["charged_nano_usd"] == sum(told)
    assert after["predictions"] - before["predictions"] == len(told)
    assert after["charged_nano_usd"] == after["creator_nano_usd"] + after["platform_nano_usd"]
    assert after["ledger_sum_nano_usd"] == 0


def test_a_seed_repeats_a_sampled_answer(platform: Platform) -> None:
    def sample(seed: int) -> str:
        answer = client(platform).chat.completions.create(
            model="intarsia/smollm2-135m-instruct",
            messages=[{"role": "user", "content": "Tell me a short story about a heron."}],
            max_tokens=24,
            temperature=1,
            seed=seed,
        )
        return answer.choices[0].message.content or ""

    assert sample(1) == sample(1) != sample(2)


# The memory of an encoder, in kB: what a process that holds one has more than a bare one.
ENCODER = """
import re
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = resident()
from marketplace.catalog.search.encoder import load
encoder = load("")
encoder.encode("transactions of a bank")
print(resident() - before)
"""


def test_the_web_process_is_light_and_the_replica_has_no_database_credentials(platform: Platform) -> None:
    web = Path(f"/proc/{platform.pid_of('web')}")
    resident = int(re.search(r"VmRSS:\s+(\d+) kB", (web / "status").read_text())[1])  # type: ignore[index]
    # The search's encoder is the one heavy thing that it is meant to hold (docs/search.md).
    encoder = int(subprocess.run([sys.executable, "-c", ENCODER], capture_output=True, text=True, check=True).stdout)
    assert encoder < 200 * 1024
    assert resident - encoder < 200 * 1024
    assert b"torch" not in _private_file(web / "maps")
    replica = _private_file(Path(f"/proc/{platform.pid_of('serving')}/environ"))
    for secret in ("DATABASE_URL", "SECRET_KEY", "API_KEY_PEPPER", "ROOT_KEY_FILE"):
        assert secret.encode() not in replica


def _private_file(path: Path) -> bytes:
    """Return a process's own view of itself. Our processes are not dumpable, so that root alone may look."""
    try:
        return path.read_bytes()
    except PermissionError:
        return b""


def test_no_secret_and_no_prompt_is_in_any_log(platform: Platform) -> None:
    marker = "heliotrope-aqueduct-77"
    with contextlib.suppress(openai.APIError):
        client(platform).chat.completions.create(
            model=MODELS["health"], messages=[{"role": "user", "content": marker}], max_tokens=4
        )
    logs = b"".join(path.read_bytes() for path in platform.state.logs.glob("*.log"))
    for secret in (marker, platform.api_key, *platform.state.secrets.values()):
        if secret != platform.state.secrets["instance"]:
            assert secret.encode() not in logs


def test_faults_of_every_kind_cost_nobody_anything_that_was_not_delivered(platform: Platform) -> None:
    """Processes die, replicas lie, clients hang up; every prediction is then audited by its id."""

    async def run() -> tuple[FaultRun, Verdict]:
        faults = FaultRun(platform, seed=1, in_flight=12)
        try:
            await faults.prepare()
            await faults.short()
            # A minute is the platform's promise; restarts of its processes take longer beside other tests.
            return faults, await faults.settle_and_audit(close_seconds=4 * CLOSE_SECONDS)
        finally:
            await faults.finish()

    faults, verdict = asyncio.run(run())
    assert verdict.faults == []
    assert sum(faults.counted.values()) >= 20 and verdict.charged > 20 and verdict.free > 20
    assert verdict.corrected > 5 and verdict.paid_out >= 1
    assert settled(platform)["ledger_sum_nano_usd"] == 0


def test_two_base_models_are_two_pools_and_each_adapter_is_answered_on_its_own(
    platform: Platform, tmp_path: Path
) -> None:
    """A second base of other shapes and another vocabulary, with a replica of its own, beside the samples' base."""
    with second_base(platform, tmp_path) as creator:
        sold = {name: creator.publish(name) for name in (SECOND, FIRST)}
        made = {name: ask_all(platform, model) for name, model in sold.items()}
        assert made[FIRST].width == 576 and made[SECOND].width == 64  # the hidden sizes of the two
        for name, answers in made.items():
            assert answers.fingerprint == creator.fingerprints[name]
        assert batch_of(platform, list(sold.values())) == {model: 200 for model in sold.values()}
        measured = creator.measure(sold[SECOND])
        assert measured["run"]["state"] == "done" and measured["evaluation"]["rows"] == 20
        trial = compare(platform, sold[FIRST], sold[SECOND])
        assert (trial["state"], trial["rows_done"], trial["rows_refused"]) == ("ended", 2, 0)
        assert settled(platform)["ledger_sum_nano_usd"] == 0

        # Without its replica a base's models are unavailable, and the other base's are not.
        creator.stop()
        refused = unavailable(platform, sold[SECOND])
        assert refused.status_code == 503 and "Nothing was charged" in refused.text
        assert ask_all(platform, sold[FIRST]).width == 576


def test_bad_luck_of_a_fleet_loses_no_prediction_and_charges_none_twice(platform: Platform) -> None:
    """Three real replicas under every kind of fault, with callers all the while. INTARSIA_CHAOS_POINTS: so many."""
    points = int(os.environ.get("INTARSIA_CHAOS_POINTS", "0"))
    chaos, verdict = asyncio.run(unlucky(platform, points=points, seed=1))
    assert verdict.faults == []
    assert sum(chaos.counted.values()) >= max(points, 9) and verdict.charged > 50
    assert verdict.cut + verdict.moved >= 1, "faults hit calls"
    assert settled(platform)["ledger_sum_nano_usd"] == 0


def test_a_revoked_version_is_refused_soon_and_from_then_on(platform: Platform) -> None:
    creator = SampleCreators(platform.state, platform.url).one("telecom", "telecom")
    version = creator.push()["version"]
    name = f"{creator.model_name}@{version}"
    messages = read_heldout("telecom")[0]["messages"]
    caller = client(platform, max_retries=0).chat.completions
    caller.create(model=name, messages=messages, max_tokens=4)
    creator.cli("revoke", name, "--reason", "test", "--yes")
    # The gateway keeps what it read for a second (offers.py, and gateway/test_cache.py by a clock of its own); a call
    # of a busy machine takes its time.
    deadline = time.monotonic() + 60
    with pytest.raises(openai.PermissionDeniedError):
        while time.monotonic() < deadline:
            caller.create(model=name, messages=messages, max_tokens=4)
    for _ in range(3):
        with pytest.raises(openai.PermissionDeniedError):
            caller.create(model=name, messages=messages, max_tokens=4)
    assert settled(platform)["ledger_sum_nano_usd"] == 0
