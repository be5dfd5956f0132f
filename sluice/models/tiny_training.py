"""The tiny addition model: its tokenizer, its shape and its supervised training."""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
VOCABULARY = (PAD, EOS, UNKNOWN, "\n", " ", *"0123456789", "+", "-", "*", "=")
PAD_ID, EOS_ID = 0, 1
IGNORED_LABEL = -100
LARGEST_SUM = 18

TRAINING_STEPS = 250
ROWS_PER_STEP = 128
SPOILT_SHARE = 0.3
LEARNING_RATE = 4e-3


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer with one token a character; it adds no special tokens of its own."""
    core = Tokenizer(models.WordLevel({token: index for index, token in enumerate(VOCABULARY)}, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers does not annotate it
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def make_config() -> LlamaConfig:
    """Two layers of width 64 with grouped-query attention and tied embeddings, as the demo's larger model has."""
    return LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        dtype="float32",
    )


def write_model(staging: Path, seed: int) -> None:
    """Train with `seed` and write weights, configuration and tokenizer into the directory `staging`."""
    threads = torch.get_num_threads()
    # One thread: sums are then taken in one order, so a seed names one set of weights.
    torch.set_num_threads(1)
    try:
        model = _train(seed)
    finally:
        torch.set_num_threads(threads)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers does not annotate it
        eos_token_id=EOS_ID, pad_token_id=PAD_ID
    )
    model.save_pretrained(staging)
    make_tokenizer().save_pretrained(staging)


def _train(seed: int) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(make_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TRAINING_STEPS)
    generator = torch.Generator().manual_seed(seed)
    rows = _Rows()
    for _ in range(TRAINING_STEPS):
        ids, labels = rows.draw(generator)
        loss = model(input_ids=ids, attention_mask=(ids != PAD_ID).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model


class _Rows:
    """All prompts and answers as token ids, to draw training rows from."""

    def __init__(self) -> None:
        tokenizer = make_tokenizer()
        prompts = [tokenizer.encode(f"{a}+{b}=") for a in range(10) for b in range(10)]
        answers = [[*tokenizer.encode(f"{answer}\n"), EOS_ID] for answer in range(LARGEST_SUM + 1)]
        longest = max(len(answer) for answer in answers)
        self.prompts = torch.tensor(prompts)
        self.answers = torch.tensor([answer + [PAD_ID] * (longest - len(answer)) for answer in answers])

    def draw(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and labels, both (ROWS_PER_STEP, length); the loss sees the answers only, not the prompts."""
        addends = torch.randint(0, 10, (ROWS_PER_STEP, 2), generator=generator)
        spoilt = torch.rand(ROWS_PER_STEP, generator=generator) < SPOILT_SHARE
        guesses = torch.randint(0, LARGEST_SUM + 1, (ROWS_PER_STEP,), generator=generator)
        prompts = self.prompts[addends[:, 0] * 10 + addends[:, 1]]
        answers = self.answers[torch.where(spoilt, guesses, addends.sum(1))]
        ids = torch.cat([prompts, answers], dim=1)
        labels = torch.cat([torch.full_like(prompts, IGNORED_LABEL), answers], dim=1)
        return ids, labels.masked_fill(ids == PAD_ID, IGNORED_LABEL)
