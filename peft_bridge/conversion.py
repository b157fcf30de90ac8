"""Any adapter whose ΔW is a matrix → plain LoRA, by PEFT's own conversion, with the error of every module."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, convert_to_lora
from peft.tuners.adalora import SVDLinear
from peft.tuners.miss import MissLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from peft_bridge.errors import BridgeError
from peft_bridge.models import LoadedAdapter

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
MAX_ERROR = 0.05  # of ΔW in any module; above it the converted adapter is another one
MAX_RANK = 256  # as the intake has it
# The least rank that keeps this share of ΔW's squared singular values: a relative error of at most 3.2 %.
ENERGY = 0.999
# Initialisations whose start can be taken away again, by PEFT's name up to its options.
_SUBTRACTED = ("pissa", "olora", "corda", "lora_ga")


@dataclass(frozen=True, slots=True)
class ModuleError:
    """One module: its rank as LoRA, ‖ΔW − BA‖ / ‖ΔW‖ (Frobenius), and ‖ΔW‖."""

    module: str
    rank: int
    error: float
    norm: float


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion cost. `method` is PEFT's name of the method, or of the initialisation."""

    method: str
    modules: tuple[ModuleError, ...]

    @property
    def worst(self) -> ModuleError:
        """Return the module with the largest error."""
        return max(self.modules, key=lambda one: one.error)

    @property
    def whole(self) -> float:
        """Return the relative error over all modules together."""
        lost = math.fsum((one.error * one.norm) ** 2 for one in self.modules)
        return math.sqrt(lost / (math.fsum(one.norm**2 for one in self.modules) or 1.0))

    @property
    def rank(self) -> int:
        """Return the largest rank."""
        return max(one.rank for one in self.modules)


def method_of(folder: Path) -> tuple[str, str | None]:
    """Return PEFT's method of an adapter, and its initialisation if that changed the base. Raises `BridgeError`."""
    raw = _config(folder)
    init = raw.get("init_lora_weights")
    changed = isinstance(init, str) and init.partition("_niter")[0] not in ("gaussian", "eva", "orthogonal", "mica")
    return str(raw.get("peft_type")), str(init) if changed else None


def convert(loaded: LoadedAdapter, source: Path, out: Path, rank: int | None, *, bar: bool = False) -> Conversion:
    """Write the adapter on `loaded` as plain LoRA into the new folder `out`; with `bar`, PEFT shows how far it is.

    rank: of every module; None: the least that keeps `ENERGY`. Raises `BridgeError` for a method that has no
    conversion, a rank above `MAX_RANK`, and a module whose error is above `MAX_ERROR`; `out` is then not there.
    """
    layers = dict(adapted_layers(loaded.model))
    method = method_of(source)[0]
    if any(isinstance(layer, SVDLinear) for layer in layers.values()):
        config, tensors = _from_adalora(layers)
    else:
        try:
            config, tensors = convert_to_lora(loaded.model, rank=ENERGY if rank is None else rank, progressbar=bar)
        except TypeError:
            raise BridgeError("adapter", f"PEFT has no conversion of {method} to LoRA", "train a LoRA") from None
        except ValueError as error:
            raise BridgeError("adapter", f"PEFT cannot convert this {method} adapter: {error}") from None
    found = [_error(path, layer, tensors) for path, layer in layers.items() if f"{path}.lora_A.weight" in tensors]
    conversion = Conversion(method, tuple(found))
    _refuse_bad(conversion)
    config.target_modules = {one.module for one in found}  # a module may be without an update, or pruned
    config.task_type, config.inference_mode = "CAUSAL_LM", True
    config.base_model_name_or_path = _config(source).get("base_model_name_or_path")
    _write(out, source, lambda folder: config.save_pretrained(str(folder)), tensors)
    return conversion


def adapted_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each layer that an adapter changes, by its path in the model."""
    for path, layer in model.named_modules():
        if isinstance(layer, BaseTunerLayer):
            yield path, layer


def subtract_initial(source: Path, initial: Path, out: Path) -> Conversion:
    """Write a LoRA of PiSSA, OLoRA, CorDA or LoRA-GA as one for the untouched base: ΔW = s(BA − B₀A₀).

    Exact, of twice the rank: it is what PEFT's `path_initial_model_for_weight_conversion` computes, without a model.
    `initial` is the adapter as it was before training. Raises `BridgeError`.
    """
    raw, (_, init) = _config(source), method_of(source)
    if init is None or not init.lower().startswith(_SUBTRACTED):
        rule = f"init_lora_weights {init!r} cannot be taken away: LoftQ's base is another one, quantized"
        raise BridgeError("initial", rule, "train with init_lora_weights=True")
    try:
        trained, start = load_file(source / TENSORS), load_file(initial / TENSORS)
    except (OSError, SafetensorError) as error:
        raise BridgeError("initial", f"{TENSORS} of both folders must be readable ({error})") from None
    same = trained.keys() == start.keys() and all(trained[name].shape == start[name].shape for name in trained)
    if not same or any(".lora_A." not in name and ".lora_B." not in name for name in trained):
        raise BridgeError("initial", f"{initial} must be the same adapter before training: its tensors differ")
    tensors = {
        name: torch.cat([value, start[name]], 0) if ".lora_A." in name else torch.cat([value, -start[name]], 1)
        for name, value in trained.items()
    }
    paths = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
    factor = 2**0.5 if raw.get("use_rslora") else 2  # keeps alpha / r, or alpha / √r
    changed = {
        "init_lora_weights": True,
        "r": 2 * raw["r"],
        "lora_alpha": factor * raw["lora_alpha"],
        "rank_pattern": {name: 2 * value for name, value in (raw.get("rank_pattern") or {}).items()},
        "alpha_pattern": {name: factor * value for name, value in (raw.get("alpha_pattern") or {}).items()},
    }
    text = json.dumps(raw | changed, indent=2) + "\n"
    found = tuple(ModuleError(path, int(tensors[f"{path}.lora_A.weight"].shape[0]), 0.0, 1.0) for path in paths)
    conversion = Conversion(init, found)
    _refuse_bad(conversion)
    _write(out, source, lambda folder: (folder / CONFIG).write_text(text), tensors)
    return conversion


@torch.inference_mode()
def _from_adalora(layers: Mapping[str, Any]) -> tuple[LoraConfig, dict[str, torch.Tensor]]:
    """Return B and diag(E)·A, exactly: PEFT's `convert_to_lora` leaves AdaLoRA out. The ranks differ by module."""
    tensors, ranks = {}, {}
    for path, layer in layers.items():
        (name,) = layer.active_adapters
        kept = (layer.lora_E[name] != 0).flatten()
        if not bool(kept.any()):
            continue
        scale = layer.scaling[name] / (layer.ranknum[name] + 1e-5)
        tensors[f"{path}.lora_A.weight"] = ((layer.lora_A[name] * layer.lora_E[name]) * scale)[kept].contiguous()
        tensors[f"{path}.lora_B.weight"] = layer.lora_B[name][:, kept].contiguous()
        ranks[path.removeprefix("base_model.model.")] = int(kept.sum())
    if not tensors:
        raise BridgeError("adapter", "changes nothing: AdaLoRA has pruned every module")
    top = max(ranks.values())
    return LoraConfig(r=top, lora_alpha=top, rank_pattern=ranks, alpha_pattern=ranks), tensors


@torch.inference_mode()
def _error(path: str, layer: Any, tensors: Mapping[str, torch.Tensor]) -> ModuleError:
    (name,) = layer.active_adapters
    whole = _delta(layer, name)
    a, b = tensors[f"{path}.lora_A.weight"].float(), tensors[f"{path}.lora_B.weight"].float()
    norm = float(whole.norm())
    lost = float((whole - b @ a).norm())
    return ModuleError(path.removeprefix("base_model.model."), int(a.shape[0]), lost / norm if norm else 0.0, norm)


def _delta(layer: Any, name: str) -> torch.Tensor:
    """Return ΔW [out, in] in float32. MiSS computes it from the base's weights, or the whole weights of that base."""
    if not isinstance(layer, MissLinear):
        return cast(torch.Tensor, layer.get_delta_weight(name)).float()
    weight = cast(torch.Tensor, layer.get_base_layer().weight).detach().float()
    if layer.miss_fn == "bat":
        return cast(torch.Tensor, layer.get_delta_weight(name, weight.clone())).float()
    return cast(torch.Tensor, layer.get_delta_weight_miss(name, torch.zeros_like(weight))).float()


def _refuse_bad(conversion: Conversion) -> None:
    if not conversion.modules:
        raise BridgeError("adapter", "no linear module was converted")
    if conversion.rank > MAX_RANK:
        widest = max(conversion.modules, key=lambda one: one.rank)
        rule = f"{widest.module} needs rank {widest.rank}, and LoRA of at most rank {MAX_RANK} is served"
        raise BridgeError("rank", rule, f"try --rank {MAX_RANK}, and look at the error; or train a LoRA")
    worst = conversion.worst
    if worst.error > MAX_ERROR:
        rule = (
            f"{worst.module} loses {worst.error:.1%} of its update at rank {worst.rank}; at most {MAX_ERROR:.0%} is "
            "taken, because the converted adapter would be another one"
        )
        raise BridgeError("rank", rule, "a higher --rank, or none, which takes the least that is enough")


def _write(out: Path, source: Path, save_config: Callable[[Path], Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write the folder under another name first: it is whole, or it is not there."""
    half = out.with_name(f".{out.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    try:
        save_config(half)
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, half / TENSORS)
        if (source / "contract.json").is_file():
            shutil.copyfile(source / "contract.json", half / "contract.json")
        half.rename(out)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def _config(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BridgeError("adapter", f"{folder / CONFIG} cannot be read ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise BridgeError("adapter", f"{folder / CONFIG} must be a JSON object")
    return value
