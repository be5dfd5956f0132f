"""Log-probabilities by transformers, against which the engine's are judged."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


class Judge:
    """A model of transformers in fp32, with the weights of any directory of shards."""

    def __init__(self, model_dir: Path, weights_dir: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted(weights_dir.glob("*.safetensors")):
            tensors |= load_file(path)
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
        self._model.load_state_dict(tensors)

    @torch.inference_mode()
    def logprobs(self, prompt: list[int], output: list[int], temperature: float = 1.0) -> torch.Tensor:
        """Log-probability of each output token after the prompt and the output tokens before it."""
        ids = torch.tensor([prompt + output])
        logits = self._model(ids).logits[0, len(prompt) - 1 : -1] / temperature
        chosen: torch.Tensor = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
        return chosen
