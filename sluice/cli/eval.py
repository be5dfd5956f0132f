"""`sluice eval`: many responses of a model to each problem of a set, judged, counted, and kept in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.connection import wait_for
from sluice.errors import ConfigError

if TYPE_CHECKING:  # at run time only when needed: it brings pyarrow, gRPC and the tokenizers
    from sluice.cli.eval_work import Plan

KNOBS = {
    "data.train_files": "--data",
    "data.max_prompt_length": "--max-prompt-length",
    "data.prompt_format": "--prompt-format",
    "data.map_keys": "--map-key",
    "reward.verifier": "--verifier",
    "rollout.stop_texts": "--stop-text",
    "model.path": "MODEL",
}
"""Fields of a run file, which the loader of prompts speaks of, by the flags that set them here."""

Place = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|VERSION", help="A model folder, or the folder of a published version.", show_default=False
    ),
]
Data = Annotated[list[str], typer.Option("--data", metavar="FILE", help="Problems; may be repeated.")]
Engines = Annotated[
    list[str], typer.Option("--engine", metavar="URL", help="SGLang servers of this model; default: our CPU engine.")
]
Base = Annotated[str | None, typer.Option("--model", help="With a published version: the model its run began as.")]
Samples = Annotated[int, typer.Option(help="Responses to each problem: the k of avg@k.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus mass.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of a response.")]
StopText = Annotated[list[str], typer.Option(help="Stop after any token with this text; may be repeated.")]
PromptFormat = Annotated[str, typer.Option(help="`chat` applies the model's chat template, `raw` does not.")]
RowFormat = Annotated[str, typer.Option(help="Columns of the files: dapo, gsm8k, deepmath, problem_answer.")]
PromptStyle = Annotated[str | None, typer.Option(help="Words around a plain prompt: dapo, boxed, gsm8k.")]
MapKey = Annotated[list[str], typer.Option(metavar="KEY=COLUMN", help="Another column, e.g. response=solution.")]
MaxPromptLength = Annotated[int, typer.Option(help="Longest prompt in tokens; a longer one is an error.")]
Verifier = Annotated[str | None, typer.Option(help="Verifier of every problem; default: by data source.")]
Seed = Annotated[int, typer.Option(help="Names the random numbers, for engines that honour seeds.")]
Limit = Annotated[int | None, typer.Option(help="Evaluate the first so many problems only.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the results; default: artifacts/eval/NAME-SETTINGS.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Responses in flight at one engine.")]
RequestSeconds = Annotated[float, typer.Option(min=1, help="Longest time for one request to an engine.")]
EngineWait = Annotated[float, typer.Option("--engine-wait-seconds", min=0, help="How long an engine may be away.")]


def evaluate(  # noqa: PLR0913, PLR0917  # one parameter for each flag
    place: Place,
    data: Data,
    engine: Engines = [],  # noqa: B006  # typer reads the default, nobody changes it
    model: Base = None,
    samples: Samples = 32,
    temperature: Temperature = 1.0,
    top_p: TopP = 0.7,
    max_tokens: MaxTokens = 2048,
    stop_text: StopText = [],  # noqa: B006
    prompt_format: PromptFormat = "chat",
    row_format: RowFormat = "dapo",
    prompt_style: PromptStyle = None,
    map_key: MapKey = [],  # noqa: B006
    max_prompt_length: MaxPromptLength = 2048,
    verifier: Verifier = None,
    seed: Seed = 0,
    limit: Limit = None,
    out: Out = None,
    concurrency: Concurrency = 64,
    request_seconds: RequestSeconds = 3600.0,
    engine_wait_seconds: EngineWait = 30.0,
) -> None:
    """Measure a model on problems: avg@k, pass@k, cons@k and best@k. Started again, it goes on where it stopped."""
    from sluice.cli.eval_work import Means, run_evaluation
    from sluice.evaluation.session import Effort

    how = {
        "data": {
            "train_files": tuple(data),
            "row_format": row_format,
            "map_keys": dict(_pair(text) for text in map_key),
            "prompt_style": prompt_style,
            "prompt_format": prompt_format,
            "max_prompt_length": max_prompt_length,
            "overlong_prompts": "error",
        },
        "samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
        "stop_texts": tuple(stop_text),
        "verifier": verifier,
        "seed": seed,
        "limit": limit,
    }
    plan = _plan(place, model, how, own_engine=not engine)
    means = Means(engine, out, Effort(concurrency, engine_wait_seconds), request_seconds)
    wait_for(run_evaluation(plan, means))


def _pair(text: str) -> tuple[str, str]:
    key, separator, column = text.partition("=")
    if not separator or not column:
        raise ConfigError(f"--map-key {text}: write KEY=COLUMN, such as response=solution")
    return key, column


def _plan(place: str, model: str | None, how: dict[str, object], own_engine: bool) -> Plan:
    from sluice.cli.eval_work import Plan
    from sluice.data import check_model, load_prompts, stop_token_ids
    from sluice.evaluation.settings import read_settings
    from sluice.evaluation.subject import find_subject

    settings = read_settings(how)
    subject = find_subject(place, model)
    try:
        spec = settings.loader_spec(str(subject.base))
        if own_engine and subject.version is None:
            check_model(spec)
        table = load_prompts(spec)
        problems = [table.row(index) for index in range(min(len(table), settings.limit or len(table)))]
        return Plan(subject, settings, table, problems, stop_token_ids(spec))
    except ConfigError as error:
        raise ConfigError(_in_flags(str(error))) from None


def _in_flags(text: str) -> str:
    for field, flag in KNOBS.items():
        text = text.replace(field, flag)
    return text
