"""One compilation as data, recorded from the launchers themselves: the registry cannot differ from what is launched."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)
# Options that launches set; the rest are Triton's defaults, which differ between its versions.
OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion", "launch_pdl")


@dataclass(frozen=True)
class Use:
    """Where a variant is launched.

    shape: the model's part, such as "Llama-3-8B qkv"
    dtype: of the weights or activations, as Triton writes it ("bf16", "fp8e4nv")
    rows: of the step
    small: whether the tests compile it (the rest is in the committed table alone)
    """

    shape: str
    dtype: str
    rows: int
    small: bool = False


@dataclass(frozen=True)
class Variant:
    """Everything that decides the machine code of a kernel.

    signature: Triton's type of each argument, by name; structs are tuples of types
    constexprs, attrs: compile-time values, and divisibility by 16, by the argument's path
    options: those of OPTIONS
    """

    kernel: Any
    signature: dict[str, Any]
    constexprs: dict[tuple[int, ...], Any]
    attrs: dict[tuple[int, ...], Any]
    options: dict[str, Any]
    uses: list[Use] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The kernel's name as tables print it; the LoRA expand that does not read y is "expand first"."""
        first = " first" if self.constants.get("ADD") is False else ""
        return self.kernel.__name__.strip("_").removesuffix("_kernel") + first

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time arguments by name, those that launches specialise included."""
        names = self.kernel.arg_names
        return {names[path[0]]: value for path, value in self.constexprs.items() if len(path) == 1}

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of all that is compiled: source without comments, types, constants, options."""
        parts = (self.signature, sorted(self.constexprs.items()), sorted(self.attrs.items()), self.options)
        text = "\n".join((*sources(self.kernel), *map(repr, parts)))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def meta(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor without memory, aligned as an allocation is."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def variants(launches: Iterable[tuple[Use, Callable[[], object]]]) -> list[Variant]:
    """Return the different variants of these launches, each with all its uses. Nothing is compiled or launched."""
    found: dict[str, Variant] = {}
    for use, launch in launches:
        with recording() as recorded:
            launch()
        for variant in recorded:
            known = found.setdefault(variant.digest, variant)
            if use not in known.uses:
                known.uses.append(use)
    return list(found.values())


@contextmanager
def recording() -> Iterator[list[Variant]]:
    """Collect what launches inside ask of Triton, as on a Hopper GPU, in place of compiling and launching it."""
    recorded: list[Variant] = []

    def record(
        kernel: Any, key: object, signature: Any, device: int, constexprs: Any, options: Any, attrs: Any, warmup: bool
    ) -> None:
        chosen = {name: getattr(options, name) for name in OPTIONS}
        present = {path: attr for path, attr in attrs.items() if attr}  # Triton 3.9 lists empty ones too
        recorded.append(Variant(kernel, dict(signature), dict(constexprs), present, chosen))

    here = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda device: 0, get_current_target=lambda: TARGET
    )
    with patch.object(JITFunction, "_do_compile", record), patch.object(driver, "_active", here):
        yield recorded


def sources(kernel: Any) -> list[str]:
    """Return the source of a kernel and of all jit functions and constants it uses, without comments and docstrings."""
    key = f"{kernel.__module__}.{kernel.__name__}"
    if key not in _sources:
        found: dict[str, str] = {}
        _collect(kernel, found)
        _sources[key] = [found[name] for name in sorted(found)]
    return _sources[key]


_sources: dict[str, list[str]] = {}


def _collect(kernel: Any, found: dict[str, str]) -> None:
    name = f"{kernel.__module__}.{kernel.__name__}"
    if name in found:
        return
    tree = ast.parse(kernel.src)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:] or [ast.Pass()]
    found[name] = ast.unparse(tree)
    for node in ast.walk(tree):
        value = None
        if isinstance(node, ast.Name):
            value = kernel.fn.__globals__.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = kernel.fn.__globals__.get(node.value.id)
            if isinstance(module, ModuleType) and not module.__name__.startswith("triton"):
                value = getattr(module, node.attr, None)
        if isinstance(value, JITFunction) and not value.__module__.startswith("triton"):
            _collect(value, found)
        elif isinstance(value, triton.language.constexpr) and isinstance(node, ast.Name):
            found[f"{name}:{node.id}"] = f"{node.id} = {value!r}"
