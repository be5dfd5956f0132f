"""Low-rank adapters (LoRA): put on the policy by peft, trained alone, merged into what is published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sluice.config import LoraConfig, RunSpec
from sluice.errors import ConfigError
from sluice.locations import model_folder

NAME = "default"
"""What peft calls an adapter that nobody named."""
FILE_PREFIX = "base_model.model."
"""Before the module's name in a file of adapters, as peft writes and reads them."""
SAMPLED_BYTES = 1 << 20
"""Of the beginning and of the end of each weight file, for a fingerprint."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """What is added to one weight [out, in]: scale · up · down."""

    layer: Any
    """peft's."""
    down: nn.Parameter
    """A: [rank, in]."""
    up: nn.Parameter
    """B: [out, rank]."""

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return float(self.layer.scaling[NAME])

    def merged(self, weight: Tensor) -> Tensor:
        """The weight with the adapter in it: [out, in] float32, a new tensor each time; nothing else changes."""
        delta = self.up.detach().float() @ self.down.detach().float()
        return weight.detach().float() + delta * self.scale


class Adapters:
    """All adapters of a model, by the weight that each belongs to; empty for a model that is trained as it is."""

    def __init__(self, layers: dict[str, Any] | None = None) -> None:
        """`layers`: peft's layers by their names in the model."""
        self.names: dict[nn.Parameter, str] = {}
        """Of each matrix, as a file of adapters has it."""
        self._of: dict[nn.Parameter, Adapter] = {}
        for name, layer in (layers or {}).items():
            adapter = Adapter(layer, layer.lora_A[NAME].weight, layer.lora_B[NAME].weight)
            self._of[layer.base_layer.weight] = adapter
            self.names[adapter.down] = f"{FILE_PREFIX}{name}.lora_A.weight"
            self.names[adapter.up] = f"{FILE_PREFIX}{name}.lora_B.weight"

    def matrices(self, weight: nn.Parameter) -> list[nn.Parameter]:
        """What `merged` reads beside the weight itself."""
        adapter = self._of.get(weight)
        return [] if adapter is None else [adapter.down, adapter.up]

    def merged(self, weight: nn.Parameter) -> Tensor:
        """The weight as the model's own checkpoint would hold it."""
        adapter = self._of.get(weight)
        return weight.detach() if adapter is None else adapter.merged(weight)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Meanwhile the model is its base. Modules run as before, so that ZeRO-3 fetches them in the same order."""
        for adapter in self._of.values():
            adapter.layer.set_scale(NAME, 0.0)
        try:
            yield
        finally:
            for adapter in self._of.values():
                adapter.layer.set_scale(NAME, 1.0)


def add_adapters(causal: Any, lora: LoraConfig, seed: int) -> Adapters:
    """Put adapters beside linear layers of the model, and freeze everything else. The seed decides the first values.

    Raises:
        ConfigError: `lora.target_modules` names no layer, or one that cannot have adapters.
    """
    import peft  # seconds that a run without adapters need not wait
    from peft.tuners.lora import Linear

    _check_targets(causal, lora)
    targets = "all-linear" if lora.target_modules is None else list(lora.target_modules)
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, causal)
    return Adapters({name: module for name, module in causal.named_modules() if isinstance(module, Linear)})


def _check_targets(causal: Any, lora: LoraConfig) -> None:
    head = causal.get_output_embeddings()
    linear = {name for name, module in causal.named_modules() if isinstance(module, nn.Linear) and module is not head}
    for target in lora.target_modules or ():
        named = [name for name, _ in causal.named_modules() if f".{name}".endswith(f".{target}")]
        if not named or not linear.issuperset(named):
            ends = sorted({name.rpartition(".")[2] for name in linear})
            wrong = next((f"{name}, which is" for name in named if name not in linear), "nothing in this model, so")
            raise ConfigError(
                f"lora.target_modules: {target!r} names {wrong} no linear layer before the head; "
                f"those are called {', '.join(ends)}"
            )


def base_name(name: str) -> str:
    """A parameter's name in the model's own checkpoint: without what peft puts around a layer."""
    return name.replace(".base_layer.", ".")


def base_fingerprint(folder: Path) -> str:
    """Hex BLAKE2b-128 of a model's weight files: names, sizes, and the bytes at both ends of each.

    Two models of one architecture differ there; reading all of a large one at each start would take minutes.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLED_BYTES))
            file.seek(max(0, size - SAMPLED_BYTES))
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()


def trained_form(spec: RunSpec) -> dict[str, Any] | None:
    """What a checkpoint of this run holds: None for all weights, else the settings of its adapters and their base."""
    if not spec.lora.rank:
        return None
    return {**spec.lora.model_dump(mode="json"), "base": base_fingerprint(model_folder(spec.model.path))}


def check_trained_form(found: dict[str, Any] | None, spec: RunSpec, checkpoint: str) -> None:
    """Refuse a checkpoint that holds something else than this run trains.

    Raises:
        ConfigError: it names the first difference.
    """
    wanted = trained_form(spec)
    if found == wanted:
        return
    if found is None or wanted is None:
        held = "all weights" if found is None else f"adapters of lora.rank = {found['rank']}"
        raise ConfigError(f"checkpoint {checkpoint} holds {held}; this run has lora.rank = {spec.lora.rank}")
    key = next(key for key in wanted if found.get(key) != wanted[key])
    if key == "base":
        raise ConfigError(
            f"checkpoint {checkpoint} holds adapters of another base than model.path = {spec.model.path!r}: "
            f"fingerprint {found.get(key)}, not {wanted[key]}"
        )
    raise ConfigError(f"checkpoint {checkpoint} has lora.{key} = {found.get(key)!r}; this run has {wanted[key]!r}")
