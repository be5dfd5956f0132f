"""The engine's forward pass, weights and sampling by themselves."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from services.engine.architecture import UnsupportedModelError, read_architecture
from services.engine.model import Chunk, Model
from services.engine.request import SamplingParams
from services.engine.sampling import Draw, mix, sample, uniform_number
from services.engine.weights import Weights, WeightsError


def load(directory: Path, dtype: torch.dtype) -> Model:
    architecture = read_architecture(directory)
    weights = Weights(architecture, dtype)
    weights.load(directory)
    return Model(architecture, weights)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2: biases on queries, keys and values, an output matrix of its own, more than one shard."""
    directory = tmp_path_factory.mktemp("models") / "qwen"
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(directory, max_shard_size="100KB")
    assert (directory / "model.safetensors.index.json").is_file()
    return directory


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("name", ["qwen", "tiny_model"])
def test_prefill_replay_and_decode_agree_with_transformers(
    request: pytest.FixtureRequest, name: str, dtype: torch.dtype, tolerance: float
) -> None:
    directory: Path = request.getfixturevalue(name)
    model = load(directory, dtype)
    a = model.architecture
    ids = torch.randint(2, a.vocab_size, (4, 20), generator=torch.Generator().manual_seed(0))
    kv = torch.zeros(a.num_layers, 2, 4, a.num_kv_heads, 32, a.head_dim, dtype=dtype)
    start = torch.zeros(4, dtype=torch.long)
    hidden = [model.forward([Chunk(ids[:, :10], start, kv)]).view(4, 10, -1)]
    hidden.append(model.forward([Chunk(ids[:, 10:15], start + 10, kv)]).view(4, 5, -1))
    for position in range(15, 20):
        halves = [Chunk(ids[s, position : position + 1], start[s] + position, kv[:, :, s]) for s in HALVES]
        hidden.append(model.forward(halves).view(4, 1, -1))
    actual = model.logits(torch.cat(hidden, dim=1).flatten(0, 1)).view(4, 20, -1).float().log_softmax(-1)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(ids).logits.log_softmax(-1)
    assert (actual - expected).abs().max() < tolerance if dtype == torch.float32 else True
    assert (actual - expected).abs().mean() < tolerance


HALVES = (slice(0, 2), slice(2, 4))


def test_new_bf16_weights_replace_the_blocked_copies_too(tiny_model: Path, other_weights: Path) -> None:
    model = load(tiny_model, torch.bfloat16)
    x = torch.randn(8, 64, dtype=torch.bfloat16)
    linear = model.weights.layers[0].qkv
    before = linear(x)
    model.weights.load(other_weights)
    torch.testing.assert_close(linear(x), torch.nn.functional.linear(x, linear.weight))
    assert not torch.equal(linear(x), before)


def test_a_tied_head_may_be_in_the_checkpoint_or_not(tiny_model: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    weights = load(tiny_model, torch.float32).weights
    weights.load(tmp_path)
    assert torch.equal(weights.tensor("lm_head.weight"), weights.tensor("model.embed_tokens.weight"))


def test_a_directory_without_weights_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="safetensors"):
        load(tiny_model, torch.float32).weights.load(tmp_path / "absent")


@pytest.mark.parametrize(
    "change",
    ['"model_type": "mixtral"', '"hidden_act": "gelu"', '"rope_parameters": {"rope_type": "yarn"}', '"mlp_bias": true'],
)
def test_a_model_the_engine_cannot_compute_is_refused_by_the_settings_name(
    tiny_model: Path, tmp_path: Path, change: str
) -> None:
    text = (tiny_model / "config.json").read_text().rstrip().removesuffix("}").rstrip()
    (tmp_path / "config.json").write_text(f"{text}, {change}}}")
    with pytest.raises(UnsupportedModelError, match="supports"):
        read_architecture(tmp_path)


def params(**changes: float) -> SamplingParams:
    whole = {"max_new_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    return SamplingParams(**(whole | changes), stop_token_ids=frozenset(), ignore_eos=False)  # type: ignore[arg-type]  # the values are numbers of the right kinds


@pytest.mark.parametrize(
    ("changes", "support"),
    [
        ({}, 4),
        ({"temperature": 0.5}, 4),
        ({"top_k": 2}, 2),
        ({"top_p": 0.75}, 2),
        ({"min_p": 0.3}, 2),
        ({"top_k": 1}, 1),
        ({"top_k": 3, "top_p": 0.99}, 3),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(changes: dict[str, float], support: int) -> None:
    likelihoods = torch.tensor([0.5, 0.3, 0.12, 0.08])
    vocabulary = torch.full((1000,), -torch.inf)
    places = torch.tensor([700, 3, 255, 256])
    vocabulary[places] = likelihoods.log()
    wish = params(**changes)
    draws = [Draw(wish, uniform_number(5, index)) for index in range(4000)]
    ids, logprobs = sample(vocabulary.expand(len(draws), -1), draws)
    scaled = (vocabulary / wish.temperature).log_softmax(-1)
    kept = scaled[places[:support]].exp()
    shares = Counter(ids)
    assert set(shares) == set(places[:support].tolist())
    for place, expected in zip(places[:support].tolist(), (kept / kept.sum()).tolist(), strict=True):
        assert shares[place] / len(draws) == pytest.approx(expected, abs=0.03)
    torch.testing.assert_close(torch.tensor(logprobs), scaled[torch.tensor(ids)], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_tokens_with_mass(uniform: float) -> None:
    logits = torch.full((1, 600), -torch.inf)
    logits[0, 300:310] = 0.0
    ids, _ = sample(logits, [Draw(params(), uniform)])
    assert ids == [300 if uniform == 0.0 else 309]


def test_uniform_numbers_are_in_the_unit_interval_and_spread_evenly() -> None:
    numbers = torch.tensor([uniform_number(mix(3, index), position) for index in range(100) for position in range(100)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert torch.histc(numbers, bins=10, min=0.0, max=1.0).div(len(numbers)).sub(0.1).abs().max() < 0.015
