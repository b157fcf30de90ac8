"""`intarsia-admin base`: real folders of every documented family go in, and what replicas cannot serve does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from marketplace.catalog.models import BaseLine, BaseModel
from marketplace.command.bases import Failed
from marketplace.command.main import app
from marketplace.vault.identities import Terms, issue_credential
from serving.models.config import ModelConfig
from tests.marketplace.vault.factories import make_model
from tests.warm import warm

pytestmark = pytest.mark.django_db

WORDS = {
    "llama": ("rotary embedding llama3", True),
    "mistral": ("rotary embedding default", False),
    "mistral-window": ("a window of 24 tokens in 2 of 2 layers", False),
    "qwen2": ("biases of queries, keys and values", True),
    "qwen2-window": ("a window of 24 tokens in 1 of 2 layers", False),
    "qwen3": ("normed queries and keys", False),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A folder of each documented family, as transformers writes it, with a tokenizer."""
    root = tmp_path_factory.mktemp("bases")
    warm().run("tests.together.maker", "families", root, *WORDS)
    yield {name: root / name for name in WORDS}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["base", *(str(one) for one in arguments)])


def document(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def refusal(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, Failed), result.stdout
    return str(result.exception)


@pytest.mark.parametrize("name", WORDS)
def test_each_documented_family_is_described_and_added(name: str, folders: dict[str, Path]) -> None:
    words, tied = WORDS[name]
    added = document("add", folders[name])
    config = ModelConfig.from_dir(folders[name])
    assert words in added["attention"] and added["tied"] is tied is config.tied_embeddings
    assert (added["layers"], added["heads"], added["kv_heads"]) == (2, 6, 2)
    assert added["context_length"] == config.max_position
    assert added["weight_bytes"] == 4 * added["parameters"] > 0 and added["has_chat_template"]
    assert added["kv_bytes"] == 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2
    base = BaseModel.objects.get(fingerprint=added["fingerprint"])
    assert (base.name, base.line.name, base.is_reference) == (name, name, True)
    assert document("add", folders[name])["fingerprint"] == added["fingerprint"]
    assert BaseModel.objects.count() == 1


def test_people_read_what_it_needs_and_what_comes_next(folders: dict[str, Path]) -> None:
    looked = run("add", folders["llama"], "--dry-run")
    assert "it can be served" in looked.stdout and not BaseModel.objects.exists()
    shown = run("add", folders["llama"], "--name", "small").stdout
    assert "small: reference of the line small" in shown and "300 tokens, head tied to the embedding" in shown
    assert "KV cache" in shown and "issue_replica_credential NAME --base small" in shown
    listed = run("list").stdout
    assert "small (reference)" in listed and "none" in listed


def test_two_lines_and_a_checkpoint_are_listed_and_what_is_unused_goes(folders: dict[str, Path]) -> None:
    assert "no base model yet" in run("list").stdout
    document("add", folders["qwen3"], "--line", "qwen", "--reference")
    document("add", folders["qwen3"], "--line", "qwen", "--checkpoint", "--dtype", "int8", "--name", "qwen-int8")
    document("add", folders["mistral"])
    assert [(one["line"], one["checkpoint"], one["reference"]) for one in document("list")] == [
        ("mistral", "mistral", True),
        ("qwen", "qwen3", True),
        ("qwen", "qwen-int8", False),
    ]
    assert "reference of 1 other checkpoints" in refusal("remove", "qwen3", "--yes")
    assert run("remove", "mistral").exit_code == 1  # nobody said yes
    for name in ("qwen-int8", "qwen3", "mistral"):
        assert run("remove", name, "--yes").exit_code == 0
    assert not BaseModel.objects.exists() and not BaseLine.objects.exists()
    assert "no base model qwen3" in refusal("remove", "qwen3", "--yes")


def test_a_base_in_use_stays(folders: dict[str, Path]) -> None:
    document("add", folders["mistral"])
    base = BaseModel.objects.get()
    issue_credential(name="one", terms=Terms(base, "127.0.0.1"))
    assert "in use by" in refusal("remove", "mistral", "--yes")
    make_model(base=base)
    assert "1 models are made for it" in refusal("remove", base.fingerprint, "--yes")
    assert BaseModel.objects.count() == 1


def changed(folder: Path, tmp_path: Path, file: str, change: Any) -> Path:
    """A copy of a folder with one file changed: `change` maps its bytes; None removes it."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    if change is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(change((copy / file).read_bytes()))
    return copy


def config_with(**entries: Any) -> Any:
    return lambda content: json.dumps({**json.loads(content), **entries}).encode()


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.json", config_with(model_type="mixtral"), "mixtures of experts are not computed"),
        ("config.json", config_with(attention_bias=True), "only Qwen2's biases"),
        ("config.json", config_with(hidden_act="gelu"), "only silu is computed"),
        ("config.json", config_with(rope_parameters={"rope_type": "yarn"}), "rope_type 'yarn': only default"),
        ("config.json", config_with(quantization_config={"quant_method": "bitsandbytes"}), "only fp8"),
        ("config.json", config_with(num_hidden_layers=3), "the weights have no model.layers.2."),
        ("config.json", config_with(vocab_size=301), "model.embed_tokens.weight has the shape [300, 48]"),
        ("config.json", lambda content: b"[]", "config.json must be a JSON object"),
        ("model.safetensors", lambda content: content[:-1], "no whole safetensors file"),
        ("model.safetensors", lambda content: b"\xff" * 64, "no whole safetensors file"),
        ("model.safetensors", None, "no .safetensors file"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", lambda content: b'{"model": {"vocab": {"x": 300}}}', "the token 300, the model 300 tokens"),
        ("tokenizer.json", lambda content: b"{}", "has no vocabulary"),
    ],
)
def test_a_folder_that_no_replica_could_serve_is_refused(
    folders: dict[str, Path], tmp_path: Path, file: str, change: Any, words: str
) -> None:
    folder = changed(folders["llama"], tmp_path, file, change)
    said = refusal("add", folder)
    assert words in said and str(folder) in said
    assert not BaseModel.objects.exists() and not BaseLine.objects.exists()


def test_a_model_without_a_chat_template_is_served_for_completions(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(folders["llama"], tmp_path, "tokenizer_config.json", config_with(chat_template=None))
    assert "no template: completions alone" in run("add", folder, "--dry-run").stdout


def test_flags_that_contradict_each_other_are_refused(folders: dict[str, Path]) -> None:
    for wrong in (["--line", "x"], ["--reference"], ["--line", "x", "--reference", "--checkpoint"]):
        assert "--line goes with" in refusal("add", folders["llama"], *wrong)
    assert "no line x" in refusal("add", folders["llama"], "--line", "x", "--checkpoint")


def test_the_command_starts_without_django_and_says_what_is_not_set() -> None:
    command = [sys.executable, "-m", "marketplace.command.main"]
    environment = {"PATH": "/usr/bin:/bin"}
    helped = subprocess.run([*command, "base", "--help"], env=environment, capture_output=True, text=True, timeout=60)
    assert helped.returncode == 0 and "remove" in helped.stdout
    failed = subprocess.run([*command, "base", "list"], env=environment, capture_output=True, text=True, timeout=60)
    assert failed.returncode == 2 and failed.stderr.startswith("error: ") and "is not set" in failed.stderr
    assert "Traceback" not in failed.stderr
