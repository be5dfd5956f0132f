"""The evaluation sets of a run: their problems, the prompts that ask for responses, the numbers that come of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config import EvaluationSet, RunSpec
from sluice.data import PromptTable, load_prompts, stop_token_ids
from sluice.errors import ConfigError
from sluice.evaluation.report import summarize
from sluice.evaluation.samples import EvaluationFolder, Sample, write_summary
from sluice.evaluation.settings import EvaluationSettings, sample_seed, settings_of
from sluice.evaluation_views import EvaluationView
from sluice.types import EvaluationGroup, EvaluationPrompt, PolicyVersion, Prompt, Sampling

PIECE_RESPONSES = 8
PIECE_TOKENS = 1 << 16
"""Most responses of one prompt, and most tokens that they may come to: what the death of a worker costs, and what is
one message. They share the problem's cache in the engine."""
DATA_FIELDS = ("train_files", "row_format", "map_keys", "prompt_style")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some responses to one problem: what one evaluation prompt asks for. `samples` count within the problem."""

    chosen: LoadedSet
    problem: int
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadedSet:
    """A set with its problems, tokenised. Exact copies of a problem count once."""

    name: str
    settings: EvaluationSettings
    table: PromptTable
    stop_token_ids: tuple[int, ...]

    @classmethod
    def load(cls, spec: RunSpec, chosen: EvaluationSet) -> LoadedSet:
        """Raises: ConfigError: a file or row is wrong, or a prompt is over data.max_prompt_length."""
        settings = settings_of(spec, chosen)
        loader = settings.loader_spec(spec.model.path)
        try:
            return cls(chosen.name, settings, load_prompts(loader), stop_token_ids(loader))
        except ConfigError as error:
            raise ConfigError(f"evaluation set {chosen.name!r}: {_in_terms_of_sets(str(error))}") from None

    @property
    def problems(self) -> int:
        return min(len(self.table), self.settings.limit or len(self.table))

    @property
    def facts(self) -> dict[str, Any]:
        """What the set is, for the run's data manifest."""
        counts = self.table.counts
        return {
            "fingerprint": self.table.fingerprint,
            "problems": self.problems,
            "rows_read": counts.rows_read,
            "duplicates": counts.duplicates,
        }

    def pieces(self) -> Iterator[Piece]:
        """Every response to every problem, once."""
        size = max(1, min(PIECE_RESPONSES, PIECE_TOKENS // self.settings.max_tokens))
        for problem in range(self.problems):
            for start in range(0, self.settings.samples, size):
                yield Piece(self, problem, tuple(range(start, min(start + size, self.settings.samples))))

    def identity(self, weights: str) -> dict[str, Any]:
        """All that decides what a response is, as `sluice eval` writes it down."""
        return self.settings.identity(weights, self.table.fingerprint)

    def view(self, model: str, weights: str, samples: Iterable[Sample]) -> EvaluationView:
        """The numbers, by the code that counts for `sluice eval`."""
        every, sources = summarize(samples, self.settings.samples)
        return EvaluationView(
            model=model,
            weights=weights,
            settings=self.identity(weights),
            rows_read=self.table.counts.rows_read,
            duplicates=self.table.counts.duplicates,
            all=every,
            sources=sources,
        )


async def load_sets(spec: RunSpec, recorded: Mapping[str, Any]) -> list[LoadedSet]:
    """The run's evaluation sets.

    Args:
        recorded: the facts of each set when the run was created, by name; empty then.

    Raises:
        ConfigError: a set cannot be read, or is not what the run was created with.
    """
    found = []
    for chosen in spec.evaluation.sets:
        loaded = await asyncio.to_thread(LoadedSet.load, spec, chosen)
        before = recorded.get(chosen.name, {}).get("fingerprint", loaded.table.fingerprint)
        if before != loaded.table.fingerprint:
            raise ConfigError(
                f"evaluation set {chosen.name!r}: its problems have changed since the run was created: fingerprint "
                f"{loaded.table.fingerprint}, recorded {before}; put {', '.join(chosen.files)} back"
            )
        found.append(loaded)
    return found


def prompt_of(piece: Piece, run_id: str, n: int, version: PolicyVersion) -> EvaluationPrompt:
    """Prompt n of the evaluation of `version`; its seeds are those that `sluice eval` gives the same responses."""
    settings, row = piece.chosen.settings, piece.chosen.table.row(piece.problem)
    seeds = tuple(sample_seed(settings.seed, piece.problem, sample) for sample in piece.samples)
    prompt = Prompt(
        run_id=run_id,
        n=n,
        index=piece.problem,
        epoch=0,
        token_ids=row.token_ids,
        text=row.text,
        ground_truth=row.ground_truth,
        data_source=settings.verifier or row.data_source,
        extra_info=row.extra_info,
        group_size=len(seeds),
        sampling=Sampling(
            settings.max_tokens, settings.temperature, settings.top_p, stop_token_ids=piece.chosen.stop_token_ids
        ),
        seed=seeds[0],
        min_version=version.number,
    )
    return EvaluationPrompt(version, prompt, seeds)


def samples_of(pieces: Sequence[Piece], groups: Iterable[EvaluationGroup]) -> dict[str, list[Sample]]:
    """The judged responses of each set, in order of their problems."""
    found: dict[str, list[Sample]] = {piece.chosen.name: [] for piece in pieces}
    for group in sorted(groups, key=lambda group: group.n):
        piece = pieces[group.n]
        source = piece.chosen.table.row(piece.problem).data_source
        found[piece.chosen.name] += [
            Sample(
                problem=piece.problem,
                sample=sample,
                data_source=source,
                response=response.text,
                tokens=response.length,
                finish_reason=str(response.finish_reason),
                weight_version=str(group.version),
                verdict=response.verdict,
            )
            for sample, response in zip(piece.samples, group.responses, strict=False)  # a failed group has none
        ]
    return found


def write_files(folder: Path, view: EvaluationView, samples: Sequence[Sample]) -> None:
    """Settings, samples and summary of one set, as `sluice eval` writes them; written again, nothing is doubled.

    Raises:
        ConfigError: the disk says no, or the folder holds another evaluation.
    """
    with EvaluationFolder(folder, view.settings) as opened:
        there = {(sample.problem, sample.sample) for sample in opened.done}
        opened.add(sample for sample in samples if (sample.problem, sample.sample) not in there)
    write_summary(folder, view.model_dump_json(indent=2) + "\n")


def _in_terms_of_sets(text: str) -> str:
    """The loader of prompts speaks of the fields of [data], where these are of the set."""
    text = text.replace("data.train_files", "files").replace("reward.verifier", "verifier")
    for field in DATA_FIELDS:
        text = text.replace(f"data.{field}", field)
    return text
