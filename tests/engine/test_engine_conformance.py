"""What a client may rely on from our engine and from SGLang alike.

Runs against our engine, and also against a real SGLang server when SLUICE_SGLANG_URL names one.
"""

import json
import time
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import torch

from tests.engine.engine_calls import LONG, PROMPT, generate, last, long_stream, output_logprobs, reset, sampling
from tests.engine.judge import Judge

NEWLINE, EOS, THREE = 3, 1, 8


@pytest.fixture
def client(server: httpx.Client, tiny_model: Path) -> httpx.Client:
    return reset(server, tiny_model)


def assert_close(actual: list[float], expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(actual), expected.float(), atol=1e-4, rtol=0.0)


def test_one_prompt_answers_one_object_with_ids_logprobs_and_the_promised_meta_info(client: httpx.Client) -> None:
    answer = generate(client, max_new_tokens=5, ignore_eos=True)
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == 5 == meta["completion_tokens"] == meta["output_token_logprobs_length"]
    assert meta["prompt_tokens"] == len(PROMPT)
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert meta["weight_version"] == "v0"
    assert meta["weight_versions"] == [{"version": "v0", "start": 0, "end": 5}]
    assert meta["num_retractions"] == 0
    assert all(entry[2] is None for entry in meta["output_token_logprobs"])
    assert {"id", "cached_tokens", "e2e_latency", "queue_time"} <= set(meta)


def test_the_rid_of_a_request_is_the_id_of_its_answer(client: httpx.Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": sampling(), "rid": "0123456789abcdef"}
    assert client.post("/generate", json=body).json()["meta_info"]["id"] == "0123456789abcdef"


def test_several_samples_or_prompts_answer_a_list_in_order(client: httpx.Client) -> None:
    assert len(generate(client, n=3)) == 3
    prompts = [PROMPT, [*PROMPT[:2], 11, 18]]
    answers = generate(client, prompts, n=2)
    assert len(answers) == 4
    assert isinstance(generate(client, [PROMPT]), list)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_output_logprobs_are_those_of_the_distribution_sampled_from(
    client: httpx.Client, judge: Judge, temperature: float
) -> None:
    for answer in generate(client, n=4, max_new_tokens=40, ignore_eos=True, temperature=temperature):
        assert_close(output_logprobs(answer), judge.logprobs(PROMPT, answer["output_ids"], temperature))


def test_prompt_logprobs_come_on_request_unscaled_and_the_first_is_null(client: httpx.Client, judge: Judge) -> None:
    body = {
        "input_ids": PROMPT,
        "sampling_params": sampling(temperature=0.5),
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    entries = client.post("/generate", json=body).json()["meta_info"]["input_token_logprobs"]
    assert entries[0] == [None, PROMPT[0], None]
    assert [entry[1] for entry in entries] == PROMPT
    assert_close([entry[0] for entry in entries[1:]], judge.logprobs(PROMPT[:1], PROMPT[1:]))


def test_temperature_zero_is_greedy(client: httpx.Client, judge: Judge) -> None:
    answers = generate(client, n=3, temperature=0.0, max_new_tokens=6, ignore_eos=True)
    assert len({tuple(answer["output_ids"]) for answer in answers}) == 1
    assert_close(output_logprobs(answers[0]), judge.logprobs(PROMPT, answers[0]["output_ids"]))


def test_a_stop_token_ends_the_sample_and_is_part_of_it(client: httpx.Client) -> None:
    answer = generate(client, stop_token_ids=[NEWLINE], max_new_tokens=50, temperature=0.0)
    assert answer["output_ids"][-1] == NEWLINE
    assert answer["output_ids"].count(NEWLINE) == 1
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": NEWLINE}


def test_the_models_own_end_token_stops_too_unless_ignored(client: httpx.Client) -> None:
    stopped = generate(client, max_new_tokens=50, temperature=0.0)
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
    ignored = generate(client, max_new_tokens=50, temperature=0.0, ignore_eos=True, stop_token_ids=[NEWLINE])
    assert len(ignored["output_ids"]) == 50


def test_a_stream_repeats_the_whole_answer_so_far_and_ends_with_done(client: httpx.Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": sampling(max_new_tokens=6, ignore_eos=True), "stream": True}
    with client.stream("POST", "/generate", json=body) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    answers = [json.loads(event) for event in events[:-1]]
    for earlier, later in pairwise(answers):
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
    assert answers[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert len(answers[-1]["output_ids"]) == 6


def test_an_update_from_disk_is_served_under_its_version(
    client: httpx.Client, other_weights: Path, other_judge: Judge
) -> None:
    body = {"model_path": str(other_weights), "weight_version": "v1"}
    reply = client.post("/update_weights_from_disk", json=body)
    assert reply.status_code == 200
    assert reply.json()["success"]
    assert client.get("/model_info").json()["weight_version"] == "v1"
    answer = generate(client, max_new_tokens=20, ignore_eos=True)
    assert answer["meta_info"]["weight_versions"] == [{"version": "v1", "start": 0, "end": 20}]
    assert_close(output_logprobs(answer), other_judge.logprobs(PROMPT, answer["output_ids"]))


def test_a_sample_retracted_for_an_update_goes_on_exactly_under_the_new_weights(
    client: httpx.Client, other_weights: Path, judge: Judge, other_judge: Judge
) -> None:
    with long_stream(client) as answers:
        assert client.post("/pause_generation", json={"mode": "retract"}).status_code == 200
        body = {"model_path": str(other_weights), "weight_version": "v1"}
        reply = client.post("/update_weights_from_disk", json=body).json()
        assert reply["success"]
        assert reply["num_paused_requests"] == 1
        client.post("/continue_generation", json={})
        answer = last(answers)
    old, new = answer["meta_info"]["weight_versions"]
    assert (old["version"], old["start"], new["version"], new["end"]) == ("v0", 0, "v1", LONG)
    assert 0 < old["end"] == new["start"] < LONG
    assert answer["meta_info"]["num_retractions"] == 1
    assert answer["meta_info"]["weight_version"] == "v1"
    ids, logprobs = answer["output_ids"], output_logprobs(answer)
    assert_close(logprobs[: old["end"]], judge.logprobs(PROMPT, ids)[: old["end"]])
    assert_close(logprobs[old["end"] :], other_judge.logprobs(PROMPT, ids)[old["end"] :])


def test_a_pause_with_abort_gives_back_what_was_made_so_far(client: httpx.Client) -> None:
    with long_stream(client) as answers:
        client.post("/pause_generation", json={"mode": "abort"})
        answer = last(answers)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) == len(output_logprobs(answer)) < LONG


def test_an_abort_by_rid_ends_the_request_with_its_partial_output(client: httpx.Client) -> None:
    with long_stream(client, rid="to-be-aborted") as answers:
        assert client.post("/abort_request", json={"rid": "to-be-aborted"}).status_code == 200
        answer = last(answers)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert client.post("/abort_request", json={"rid": "nobody"}).status_code == 200


def test_a_request_during_a_pause_waits_for_its_end(client: httpx.Client) -> None:
    client.post("/pause_generation", json={"mode": "retract"})
    with pytest.raises(httpx.ReadTimeout):
        client.post("/generate", json={"input_ids": PROMPT, "sampling_params": sampling()}, timeout=0.5)
    client.post("/continue_generation", json={})
    assert generate(client)["output_ids"]


@pytest.mark.parametrize("body", [{"input_ids": []}, {"input_ids": [8] * 3000}])
def test_a_prompt_that_cannot_be_served_is_a_400_with_a_message(client: httpx.Client, body: dict[str, object]) -> None:
    response = client.post("/generate", json=body | {"sampling_params": sampling()})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_the_version_can_be_named_without_new_weights(client: httpx.Client) -> None:
    body = {"new_version": "v7", "abort_all_requests": False}
    assert client.post("/update_weight_version", json=body).json()["success"]
    assert client.get("/model_info").json()["weight_version"] == "v7"


def test_an_idle_engine_flushes_and_a_busy_one_refuses(client: httpx.Client) -> None:
    assert client.post("/flush_cache").status_code == 200
    with long_stream(client) as answers:
        client.post("/pause_generation", json={"mode": "in_place"})
        assert client.post("/flush_cache").status_code == 400
        client.post("/continue_generation", json={})
        assert len(last(answers)["output_ids"]) == LONG


def test_weights_can_be_read_back_by_name(client: httpx.Client) -> None:
    rows = client.post("/get_weights_by_name", json={"name": "model.embed_tokens.weight", "truncate_size": 2}).json()
    assert len(rows) == 2
    assert len(rows[0]) == 64


def test_the_checksum_tells_one_set_of_weights_from_another(client: httpx.Client, other_weights: Path) -> None:
    def checksum() -> str:
        reply = client.post("/weights_checker", json={"action": "checksum"}).json()
        assert reply["success"]
        return json.dumps(reply, sort_keys=True)

    before = checksum()
    client.post("/update_weights_from_disk", json={"model_path": str(other_weights), "weight_version": "v1"})
    assert checksum() != before


def test_health_answers_within_a_few_seconds(client: httpx.Client) -> None:
    start = time.monotonic()
    assert client.get("/health").status_code == 200
    assert client.get("/health_generate").status_code == 200
    assert time.monotonic() - start < 10.0
