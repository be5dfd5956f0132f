"""What our engine guarantees beyond SGLang: strict validation, exact ids, health in a pause, atomic updates."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.engine_calls import (
    LONG,
    PROMPT,
    StartEngine,
    generate,
    last,
    long_stream,
    metric,
    output_logprobs,
    running,
    sampling,
    wait_until_running,
)
from tests.engine.judge import Judge

VOCABULARY = 19


def checksums(engine: httpx.Client) -> Any:
    return engine.post("/weights_checker", json={"action": "checksum"}).json()["ranks"]


def test_the_samples_of_a_group_share_one_prefill(engine: httpx.Client) -> None:
    before = metric(engine, "prefilled_tokens_total")
    answers = generate(engine, n=8)
    assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [0] + [len(PROMPT)] * 7
    assert metric(engine, "prefilled_tokens_total") - before == len(PROMPT)


def test_equal_prompts_of_a_batch_share_one_prefill_and_unequal_lengths_are_padded_harmlessly(
    engine: httpx.Client, judge: Judge
) -> None:
    before = metric(engine, "prefilled_tokens_total")
    prompts = [PROMPT, PROMPT, [*PROMPT, 12], [*PROMPT, 12, 3], [8], [8, 15, 9, 18] * 20]
    answers = generate(engine, prompts, max_new_tokens=12, ignore_eos=True)
    assert metric(engine, "prefilled_tokens_total") - before == 4 + 5 + 6 + 1 + 80
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = judge.logprobs(prompt, answer["output_ids"])
        torch.testing.assert_close(torch.tensor(output_logprobs(answer)), expected, atol=1e-4, rtol=0.0)


def test_a_sample_admitted_in_mid_decode_ends_before_an_earlier_long_one(engine: httpx.Client) -> None:
    with long_stream(engine) as answers:
        assert len(generate(engine, max_new_tokens=3, ignore_eos=True)["output_ids"]) == 3
        assert running(engine) == 1
        engine.post("/abort_request", json={"abort_all": True})
        assert last(answers)["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_long_sample_keeps_exact_logprobs_while_its_row_grows(engine: httpx.Client, judge: Judge) -> None:
    with ThreadPoolExecutor() as pool:
        lengths = [5, 40, 70, 300]
        answers = pool.map(lambda n: generate(engine, max_new_tokens=n, ignore_eos=True), lengths)
        for length, answer in zip(lengths, answers, strict=True):
            assert len(answer["output_ids"]) == length
            expected = judge.logprobs(PROMPT, answer["output_ids"])
            torch.testing.assert_close(torch.tensor(output_logprobs(answer)), expected, atol=1e-4, rtol=0.0)


def test_an_abort_ends_the_exact_rid_only(engine: httpx.Client) -> None:
    with long_stream(engine, rid="g1") as first, long_stream(engine, rid="g10") as second:
        engine.post("/abort_request", json={"rid": "g1"})
        assert last(first)["meta_info"]["finish_reason"]["type"] == "abort"
        assert last(second)["meta_info"]["finish_reason"] == {"type": "length", "length": LONG}


@pytest.mark.parametrize("rid", ["whole", "whole_1"])
def test_an_abort_reaches_a_group_by_its_rid_and_one_sample_by_its_own(engine: httpx.Client, rid: str) -> None:
    body = {
        "input_ids": PROMPT,
        "rid": "whole",
        "sampling_params": sampling(n=3, max_new_tokens=LONG, ignore_eos=True),
    }
    with ThreadPoolExecutor() as pool:
        pending = pool.submit(engine.post, "/generate", json=body)
        wait_until_running(engine, 3)
        engine.post("/abort_request", json={"rid": rid})
        ends = [answer["meta_info"]["finish_reason"]["type"] for answer in pending.result().json()]
    assert ends == (["abort"] * 3 if rid == "whole" else ["length", "abort", "length"])


@pytest.mark.parametrize("bad", [VOCABULARY, -1, 1 << 40, "3", 1.5, True])
def test_a_token_outside_the_vocabulary_is_refused_and_the_engine_lives(engine: httpx.Client, bad: Any) -> None:
    response = engine.post("/generate", json={"input_ids": [8, bad], "sampling_params": sampling()})
    assert response.status_code == 400
    assert str(bad) in response.json()["error"]["message"]
    assert generate(engine)["output_ids"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"text": "3+4="}, "text"),
        ({"top_logprobs_num": 5}, "top_logprobs_num"),
        ({"logprob_start_len": 2}, "logprob_start_len"),
        ({"sampling_params": {"stop": ["\n"]}}, "sampling_params.stop"),
        ({"sampling_params": {"repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"sampling_params": {"max_tokens": 3}}, "max_tokens"),
        ({"sampling_params": {"top_k": 0}}, "top_k"),
        ({"sampling_params": {"temperature": -1.0}}, "temperature"),
        ({"sampling_params": {"max_new_tokens": 5000}}, "max_new_tokens"),
        ({"sampling_params": {"stop_token_ids": [99]}}, "stop_token_ids"),
        ({"rid": ["a", "b"]}, "rid"),
    ],
)
def test_what_the_engine_does_not_compute_is_refused_by_name(
    engine: httpx.Client, body: dict[str, Any], named: str
) -> None:
    response = engine.post("/generate", json={"input_ids": PROMPT} | body)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


def test_a_body_that_is_not_json_is_refused(engine: httpx.Client) -> None:
    response = engine.post("/generate", content=b"{")
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


def test_top_k_and_top_p_restrict_what_is_drawn_and_leave_the_logprob_whole(engine: httpx.Client, judge: Judge) -> None:
    first = torch.stack([judge.logprobs(PROMPT, [token]) for token in range(VOCABULARY)])[:, 0]
    order = first.argsort(descending=True).tolist()
    num_kept = int((first.exp().sort(descending=True).values.cumsum(0) < 0.5).sum()) + 1
    for changes, allowed in (({"top_k": 2}, order[:2]), ({"top_p": 0.5}, order[:num_kept])):
        answers = generate(engine, n=64, max_new_tokens=1, **changes)
        assert {answer["output_ids"][0] for answer in answers} <= set(allowed)
        for answer in answers:
            assert output_logprobs(answer)[0] == pytest.approx(first[answer["output_ids"][0]].item(), abs=1e-4)


def test_a_sampling_seed_repeats_its_samples_whoever_runs_beside_them(engine: httpx.Client) -> None:
    def draw(seed: int) -> list[list[int]]:
        answers = generate(engine, n=4, max_new_tokens=30, ignore_eos=True, sampling_seed=seed)
        return [answer["output_ids"] for answer in answers]

    alone = draw(11)
    with long_stream(engine) as answers:
        assert draw(11) == alone
        engine.post("/abort_request", json={"abort_all": True})
        last(answers)
    assert draw(12) != alone
    assert len({tuple(ids) for ids in alone}) == 4


def test_a_paused_engine_is_healthy_and_says_how_many_it_holds(engine: httpx.Client) -> None:
    with long_stream(engine) as answers:
        engine.post("/pause_generation", json={"mode": "retract"})
        for path in ("/health", "/health_generate", "/ready", "/ping"):
            assert engine.get(path).status_code == 200
        assert metric(engine, "num_paused_reqs") == 1
        engine.post("/continue_generation", json={})
        last(answers)


def _without_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.weight"]


def _with_an_unknown_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(2)


def _with_a_wrong_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.zeros(63)


@pytest.mark.parametrize("spoil", [_without_a_tensor, _with_an_unknown_tensor, _with_a_wrong_shape, None])
def test_a_failed_update_leaves_the_old_weights_and_version(
    engine: httpx.Client, other_weights: Path, tmp_path: Path, spoil: Any
) -> None:
    before = checksums(engine)
    if spoil is not None:
        tensors: dict[str, torch.Tensor] = {}
        for path in other_weights.iterdir():
            tensors |= load_file(path)
        spoil(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
    else:
        (tmp_path / "model.safetensors").write_bytes(b"cut short")
    reply = engine.post("/update_weights_from_disk", json={"model_path": str(tmp_path), "weight_version": "v1"})
    assert reply.status_code == 400
    assert reply.json()["success"] is False
    assert "model" in reply.json()["message"]
    assert checksums(engine) == before
    assert engine.get("/model_info").json()["weight_version"] == "v0"


def test_an_update_without_a_pause_lets_running_samples_end_under_the_old_weights(
    engine: httpx.Client, other_weights: Path
) -> None:
    with long_stream(engine) as answers:
        body = {"model_path": str(other_weights), "weight_version": "v1"}
        assert engine.post("/update_weights_from_disk", json=body).json()["success"]
        answer = last(answers)
    assert answer["meta_info"]["weight_versions"] == [{"version": "v0", "start": 0, "end": LONG}]
    assert generate(engine)["meta_info"]["weight_version"] == "v1"


def test_an_update_of_samples_paused_in_place_needs_leave_to_keep_their_stale_cache(
    engine: httpx.Client, other_weights: Path
) -> None:
    body: dict[str, Any] = {"model_path": str(other_weights), "weight_version": "v1"}
    with long_stream(engine) as answers:
        engine.post("/pause_generation", json={"mode": "in_place"})
        refused = engine.post("/update_weights_from_disk", json=body)
        assert refused.status_code == 400
        assert "flush_cache=false" in refused.json()["message"]
        assert engine.post("/update_weights_from_disk", json=body | {"flush_cache": False}).json()["success"]
        engine.post("/continue_generation", json={})
        spans = last(answers)["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["v0", "v1"]


def test_a_client_that_goes_away_frees_its_row(engine: httpx.Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": sampling(max_new_tokens=2000, ignore_eos=True)}
    before = metric(engine, "num_aborted_requests_total")
    with pytest.raises(httpx.ReadTimeout):
        engine.post("/generate", json=body, timeout=0.3)
    with long_stream(engine):
        pass
    wait_until_running(engine, 0)
    assert metric(engine, "num_aborted_requests_total") - before == 2


def test_transports_that_are_not_served_say_so(engine: httpx.Client) -> None:
    for path in ("/update_weights_from_tensor", "/update_weights_from_distributed", "/init_weights_update_group"):
        response = engine.post(path, json={})
        assert response.status_code == 501
        assert "/update_weights_from_disk" in response.json()["message"]


def test_a_cache_too_small_for_all_gives_rows_back_and_every_sample_still_ends_exactly(
    start_engine: StartEngine, judge: Judge
) -> None:
    small = start_engine("--max-total-tokens", "256", "--max-running-requests", "6", "--max-prefill-tokens", "8")
    answers = generate(small, n=8, max_new_tokens=100, ignore_eos=True)
    assert metric(small, "num_retracted_reqs_total") > 0
    for answer in answers:
        assert len(answer["output_ids"]) == 100
        expected = judge.logprobs(PROMPT, answer["output_ids"])
        torch.testing.assert_close(torch.tensor(output_logprobs(answer)), expected, atol=1e-4, rtol=0.0)
    refused = small.post("/generate", json={"input_ids": PROMPT, "sampling_params": sampling(max_new_tokens=300)})
    assert "--max-total-tokens" in refused.json()["error"]["message"]


def test_each_key_opens_its_own_routes(start_engine: StartEngine) -> None:
    locked = start_engine("--api-key", "user", "--admin-api-key", "admin")
    body = {"input_ids": PROMPT, "sampling_params": sampling()}
    expected = {"user": (200, 401), "admin": (401, 200), "wrong": (401, 401)}
    for key, (normal, control) in expected.items():
        headers = {"Authorization": f"Bearer {key}"}
        assert locked.post("/generate", json=body, headers=headers).status_code == normal
        assert locked.get("/model_info", headers=headers).status_code == normal
        assert locked.post("/continue_generation", json={}, headers=headers).status_code == control
    # A probe that needs no key here, but needs one at SGLang, would keep a pod on GPUs from ever being ready.
    assert locked.post("/generate", json=body).status_code == 401
    assert locked.get("/ping").status_code == 401
    for path in ("/health", "/health_generate", "/ready", "/metrics"):
        assert locked.get(path).status_code == 200


def test_http_stays_responsive_while_the_model_computes(engine: httpx.Client) -> None:
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            generate(engine, n=32, max_new_tokens=60, ignore_eos=True)

    with ThreadPoolExecutor() as pool:
        busy = pool.submit(keep_busy)
        slowest = 0.0
        for _ in range(20):
            start = time.monotonic()
            assert engine.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
        stop.set()
        busy.result()
    assert slowest < 2.0
