"""The client against the answers recorded from SGLang: what is sent, what is believed, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.rollout.completion import (
    EngineUnfinishedError,
    ForeignWeightsError,
    read_completions,
)
from services.rollout.engine import Engine, EngineLimits
from services.rollout.run import RunUnfitError
from sluice.errors import ConfigError, WaitTimeoutError
from sluice.packed import LogProbs, TokenIds
from sluice.transport.engine import EngineDownError, EngineRefusedError
from sluice.types import FinishReason, PolicyVersion, Prompt, Sampling, VersionSpan
from tests.rollout.sglang import SglangServer, sample, stopped

V0, V1 = PolicyVersion(0, 1), PolicyVersion(1, 1)
STOP = {"type": "stop", "matched": 3}
LIMITS = EngineLimits(vocab_size=19, context_length=2048, deterministic=False)
PROMPT = Prompt(
    run_id="r",
    n=0,
    index=0,
    epoch=0,
    token_ids=(8, 15, 9, 18),
    text="3+4=",
    ground_truth="7",
    data_source="d",
    extra_info="{}",
    group_size=2,
    sampling=Sampling(8, stop_token_ids=(3,)),
    seed=11,
    min_version=0,
)


@pytest.fixture
def server() -> Iterator[SglangServer]:
    server = SglangServer()
    yield server
    server.close()


@pytest.fixture
async def engine(server: SglangServer) -> AsyncIterator[Engine]:
    engine = Engine(server.url)
    yield engine
    await engine.close()


async def test_one_request_asks_for_the_whole_group_and_names_every_sampling_field(
    server: SglangServer, engine: Engine
) -> None:
    server.weight_version = "v0.1"
    completions = await engine.generate(PROMPT, LIMITS, 5)

    body = server.bodies("/generate")[0]
    assert body.pop("rid") != ""
    assert body == {
        "input_ids": [8, 15, 9, 18],
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "stream": False,
        "sampling_params": {
            "n": 2,
            "max_new_tokens": 8,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "stop": [],
            "stop_token_ids": [3],
            "ignore_eos": False,
            "sampling_seed": 11,
        },
    }
    assert [tuple(completion.token_ids) for completion in completions] == [(7, 3), (7, 3)]
    assert completions[0].logprobs == LogProbs([-0.5, -0.51])
    assert completions[0].spans == (VersionSpan(V0, 0, 2),)


async def test_request_ids_have_one_length_and_are_never_used_twice(server: SglangServer, engine: Engine) -> None:
    server.weight_version = "v0.1"
    for _ in range(20):
        await engine.generate(PROMPT, LIMITS, 5)

    rids = [body["rid"] for body in server.bodies("/generate")]
    assert len(set(rids)) == 20
    assert {len(rid) for rid in rids} == {32}  # SGLang aborts by prefix


async def test_an_engine_that_honours_seeds_gets_one_seed_a_rollout(server: SglangServer, engine: Engine) -> None:
    server.server_info["enable_deterministic_inference"] = True
    server.generate = lambda body: (200, [stopped([7, 3]) for _ in body["input_ids"]])
    limits = replace(LIMITS, deterministic=True)

    completions = await engine.generate(PROMPT, limits, 5)

    body = server.bodies("/generate")[0]
    assert len(completions) == 2
    assert [params["sampling_seed"] for params in body["sampling_params"]] == [11, 12]
    assert {params["n"] for params in body["sampling_params"]} == {1}


async def test_a_group_of_one_may_be_answered_without_a_list(server: SglangServer, engine: Engine) -> None:
    server.generate = lambda body: (200, stopped([7, 3]))
    completions = await engine.generate(replace(PROMPT, group_size=1), LIMITS, 5)
    assert len(completions) == 1


async def test_each_route_gets_the_key_of_its_level() -> None:
    server = SglangServer(api_key="k", admin_api_key="a")
    server.weight_version = "v0.1"
    engine = Engine(server.url, "k", "a")
    await engine.generate(PROMPT, LIMITS, 5)
    await engine.pause()
    await engine.resume()
    assert await engine.weight_version() == "v0.1"
    await engine.close()
    only = Engine(server.url, "k")
    with pytest.raises(ConfigError, match="SLUICE_ENGINE_ADMIN_API_KEY"):
        await only.pause()
    await only.close()
    server.close()


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (replace(PROMPT, token_ids=(5, 19)), "token id 19; the vocabulary has 19"),
        (replace(PROMPT, token_ids=(-1,)), "token id -1"),
        (replace(PROMPT, token_ids=(5,) * 2048), "leaves no room in a context of 2048"),
    ],
)
async def test_what_would_kill_the_engine_is_never_sent(
    server: SglangServer, engine: Engine, prompt: Prompt, says: str
) -> None:
    with pytest.raises(EngineRefusedError, match=says):
        await engine.generate(prompt, LIMITS, 5)
    assert server.requests == []


async def test_the_response_length_is_cut_to_the_context(server: SglangServer, engine: Engine) -> None:
    server.weight_version = "v0.1"
    await engine.generate(replace(PROMPT, token_ids=(5,) * 2044), LIMITS, 5)
    assert server.bodies("/generate")[0]["sampling_params"]["max_new_tokens"] == 3


def test_weights_that_changed_under_a_request_leave_spans_and_neighbours_of_one_version_join() -> None:
    tokens = list(range(5, 15))
    answer = sample(tokens, [("v0.1", 0, 4), ("v0.1", 4, 6), ("v1.1", 6, 6), ("v1.1", 6, 10)], STOP)
    completion = read_completions([answer], 1)[0]
    assert completion.spans == (VersionSpan(V0, 0, 6), VersionSpan(V1, 6, 10))
    assert (completion.oldest_version, completion.newest_version) == (V0, V1)


def test_a_response_without_tokens_is_a_rollout_of_the_version_that_was_served() -> None:
    completion = read_completions(sample([], [], {"type": "stop", "matched": 1}, weight_version="v1.1"), 1)[0]
    assert (completion.token_ids, completion.spans, completion.oldest_version) == (TokenIds(), (), V1)


def test_a_response_that_was_cut_says_length() -> None:
    answer = sample([7, 8], [("v0.1", 0, 2)], {"type": "length", "length": 2})
    assert read_completions([answer], 1)[0].finish_reason is FinishReason.LENGTH


ABORTED = {"type": "abort", "message": "Abort in waiting queue"}
WRONG_LOGPROBS = {"output_token_logprobs": [[-0.1, 7, None]]}


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (sample([7], [("v0.1", 0, 1)], ABORTED), EngineUnfinishedError, "Abort in waiting queue"),
        ({"output_ids": [], "meta_info": {"finish_reason": ABORTED}}, EngineUnfinishedError, "Abort"),
        (sample([7], [("v0.1", 0, 1)], ABORTED | {"status_code": 400}), EngineRefusedError, "aborted"),
        (sample([7], [("v0.1", 0, 1)], ABORTED | {"err_type": "BadRequestError"}), EngineRefusedError, "aborted"),
        (sample([7, 3], [("v0.1", 0, 2)], STOP, **WRONG_LOGPROBS), EngineRefusedError, "log-probs of 1 tokens"),
        (sample([7, 3], [("v0.1", 0, 2)], STOP, output_token_logprobs=None), EngineRefusedError, "of 0 tokens"),
        (sample([7, 3], [("v0.1", 0, 1)], STOP), EngineRefusedError, "must cover all"),
        (sample([7, 3], [], STOP), EngineRefusedError, "must cover all"),
        (sample([7, 3], [("v0.1", 0, 1), ("v1.1", 0, 2)], STOP), EngineRefusedError, "must cover all"),
        (sample([7, 3], [("default", 0, 2)], STOP), ForeignWeightsError, "'default', which is no policy version"),
        (sample([7, 3], [("v0.1", 0, 2)], {"type": "unheard"}), EngineRefusedError, "unheard"),
        ({"text": "7"}, EngineRefusedError, "lacks"),
        ([], EngineRefusedError, "answered 0 samples, asked for 1"),
    ],
)
def test_what_is_no_whole_rollout_never_becomes_one(answer: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read_completions(answer, 1)


async def test_a_cut_connection_and_a_server_error_are_a_dead_engine(server: SglangServer, engine: Engine) -> None:
    server.generate = lambda body: None
    with pytest.raises(EngineDownError, match="/generate"):
        await engine.generate(PROMPT, LIMITS, 5)
    server.generate = lambda body: (500, {"error": {"message": "scheduler is gone"}})
    with pytest.raises(EngineDownError, match="scheduler is gone"):
        await engine.generate(PROMPT, LIMITS, 5)
    nobody = Engine("http://127.0.0.1:9")
    with pytest.raises(EngineDownError):
        await nobody.weight_version()
    await nobody.close()


async def test_a_refused_request_says_why(server: SglangServer, engine: Engine) -> None:
    server.generate = lambda body: (400, {"error": {"message": "The input (5000 tokens) is longer than the context"}})
    with pytest.raises(EngineRefusedError, match="longer than the context"):
        await engine.generate(PROMPT, LIMITS, 5)


async def test_a_paused_engine_answers_after_it_goes_on_and_its_health_is_not_asked(
    server: SglangServer, engine: Engine
) -> None:
    server.weight_version = "v0.1"
    await engine.pause()
    waiting = asyncio.create_task(engine.generate(PROMPT, LIMITS, 5))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert await engine.weight_version() == "v0.1"

    await engine.resume()
    assert len(await waiting) == 2
    assert server.bodies("/pause_generation") == [{"mode": "retract"}]
    assert server.bodies("/health") == []


async def test_a_request_that_outlives_its_deadline_is_named_and_aborted(server: SglangServer, engine: Engine) -> None:
    await engine.pause()
    with pytest.raises(WaitTimeoutError, match=r"'generate' passed its deadline of 0\.2 s; change deadlines"):
        await engine.generate(PROMPT, LIMITS, 0.2)
    rid = server.bodies("/generate")[0]["rid"]
    assert server.bodies("/abort_request") == [{"rid": rid, "abort_all": False}]


async def test_a_cancelled_request_is_aborted(server: SglangServer, engine: Engine) -> None:
    await engine.pause()
    waiting = asyncio.create_task(engine.generate(PROMPT, LIMITS, 5))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(server.bodies("/abort_request")) == 1


async def test_limits_come_from_the_engine_or_else_from_the_models_config(
    server: SglangServer, engine: Engine, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    with pytest.raises(RunUnfitError, match=r"config\.json cannot be read"):
        await engine.limits(tmp_path)
    config.write_text("{}")
    with pytest.raises(RunUnfitError, match=r"vocab_size \(None\)"):
        await engine.limits(tmp_path)
    config.write_text(json.dumps({"text_config": {"vocab_size": 19, "max_position_embeddings": 64}}))
    assert await engine.limits(tmp_path) == EngineLimits(19, 64, False)
    server.server_info |= {"context_length": 32, "enable_deterministic_inference": True}
    assert await engine.limits(tmp_path) == EngineLimits(19, 32, True)
