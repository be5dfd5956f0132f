"""The chunked head against the obvious computation that keeps all logits."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from services.trainer import head
from services.trainer.head import LogProbHead

NODES, WIDTH, VOCABULARY = 7, 16, 50


def obvious(
    hidden: Tensor, weight: Tensor, slots: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp[slots, targets], entropy[slots]


@pytest.mark.parametrize("chunk_nodes", [1, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_log_probs_entropies_and_gradients_are_those_of_all_logits_at_once(
    monkeypatch: Any, chunk_nodes: int, temperature: float, entropy_gradient: bool
) -> None:
    monkeypatch.setattr(head, "CHUNK_BYTES", 4 * VOCABULARY * chunk_nodes)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(NODES, WIDTH, generator=generator, requires_grad=True)
    weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH, generator=generator))
    slots = torch.tensor([0, 0, 0, 2, 3, 3, 6])  # nodes 1, 4 and 5 predict nothing
    targets = torch.randint(VOCABULARY, (len(slots),), generator=generator)
    gradients = torch.randn(2, len(slots), generator=generator)

    found = LogProbHead(weight, temperature, entropy_gradient)(hidden, slots, targets)
    expected = obvious(hidden, weight, slots, targets, temperature)
    torch.testing.assert_close(found, expected)
    assert found[1].requires_grad is entropy_gradient

    loss, wanted = (
        (gradients[0] * logp).sum() - ((gradients[1] * entropy).sum() if entropy_gradient else 0.0)
        for logp, entropy in (found, expected)
    )
    for a, b in zip(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(wanted, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(a, b)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Remembers how many elements the largest tensor had that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [t for t in (made if isinstance(made, tuple | list) else [made]) if isinstance(t, Tensor)]
        self.elements = max([self.elements, *(t.numel() for t in tensors)])
        return made


def test_no_tensor_is_ever_as_large_as_all_logits_with_or_without_an_entropy_term(monkeypatch: Any) -> None:
    nodes, chunk_nodes = 64, 4
    monkeypatch.setattr(head, "CHUNK_BYTES", 4 * VOCABULARY * chunk_nodes)
    weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
    for entropy_gradient in (False, True):
        hidden = torch.randn(nodes, WIDTH, requires_grad=True)
        with Largest() as largest:  # type: ignore[no-untyped-call]  # torch does not annotate it
            logp, entropy = LogProbHead(weight, 1.0, entropy_gradient)(
                hidden, torch.arange(nodes), torch.zeros(nodes, dtype=torch.int64)
            )
            torch.autograd.backward((logp + entropy).sum())
        # the weight, the hidden states and their gradients; a chunk of logits is smaller
        assert chunk_nodes * VOCABULARY < largest.elements == max(weight.numel(), hidden.numel()) < nodes * VOCABULARY


def test_bfloat16_weights_give_float32_log_probs() -> None:
    weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH, dtype=torch.bfloat16))
    hidden = torch.randn(NODES, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    logp, entropy = LogProbHead(weight, 1.0)(hidden, torch.arange(NODES), torch.zeros(NODES, dtype=torch.int64))
    assert logp.dtype == entropy.dtype == torch.float32
    expected, _ = obvious(
        hidden.float(), weight.float(), torch.arange(NODES), torch.zeros(NODES, dtype=torch.int64), 1.0
    )
    torch.testing.assert_close(logp, expected, atol=0.05, rtol=0.02)
