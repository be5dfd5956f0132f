"""What the statistics of a training step are called in a tracker, the same in all of them.

A name is a group, then the field's name in the API and in Prometheus, without what the group says already. What ends in
`_kept` is about the kept groups alone; they are selected, so their mean reward says little about the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BATCH = {
    "reward_mean": "reward/mean",
    "acc_mean": "reward/acc_mean",
    "keep_rate": "sampling/keep_rate",
    "sampled_groups": "sampling/groups",
    "dropped": "sampling/dropped/{}",
    "tokens": "sampling/tokens",
    "tokens_per_second": "sampling/tokens_per_second",
    "in_flight": "sampling/in_flight",
    "kept_waiting": "sampling/kept_waiting",
    "response_length_mean": "length/response_mean",
    "truncated_share": "length/truncated_share",
    "staleness": "staleness/groups/{}",
    "elapsed_seconds": "timing/elapsed_seconds",
    "fill_seconds": "timing/fill_seconds",
}
"""Names of the fields of a `batch` event. `{}`: the field is a table, and each key of it is a metric."""

STEP = {
    "reward_mean_kept": "reward/mean_kept",
    "score_mean_kept": "reward/score_mean_kept",
    "acc_mean_kept": "reward/acc_mean_kept",
    "advantage_min": "reward/advantage_min",
    "advantage_max": "reward/advantage_max",
    "overlong_penalty_mean": "reward/overlong_penalty_mean",
    "overlong_share": "reward/overlong_share",
    "loss": "actor/loss",
    "policy_loss": "actor/policy_loss",
    "kl_loss": "actor/kl_loss",
    "entropy": "actor/entropy",
    "lr": "actor/lr",
    "grad_norm": "actor/grad_norm",
    "grad_norm_max": "actor/grad_norm_max",
    "grad_clipped_fraction": "actor/grad_clipped_fraction",
    "clip_fraction_high": "actor/clip_fraction_high",
    "clip_fraction_low": "actor/clip_fraction_low",
    "dual_clip_fraction": "actor/dual_clip_fraction",
    "approx_kl": "actor/approx_kl",
    "approx_kl_k3": "actor/approx_kl_k3",
    "ratio_mean": "actor/ratio_mean",
    "ratio_max": "actor/ratio_max",
    "mean_token_probability": "actor/mean_token_probability",
    "updates": "actor/updates",
    "updates_total": "actor/updates_total",
    "gradient_overflows": "actor/gradient_overflows",
    "groups": "actor/groups",
    "trained_sequences": "actor/trained_sequences",
    "overlong_filtered": "actor/overlong_filtered",
    "trained_tokens": "actor/trained_tokens",
    "prompt_tokens": "actor/prompt_tokens",
    "response_tokens": "actor/response_tokens",
    "computed_tokens": "actor/computed_tokens",
    "logprob_gap_mean": "behaviour/logprob_gap_mean",
    "logprob_gap_max": "behaviour/logprob_gap_max",
    "prob_gap_mean": "behaviour/prob_gap_mean",
    "prob_gap_max": "behaviour/prob_gap_max",
    "prob_correlation": "behaviour/prob_correlation",
    "behaviour_kl": "behaviour/kl",
    "behaviour_kl_k3": "behaviour/kl_k3",
    "trainer_perplexity": "behaviour/trainer_perplexity",
    "behaviour_perplexity": "behaviour/behaviour_perplexity",
    "log_perplexity_gap": "behaviour/log_perplexity_gap",
    "log_perplexity_gap_abs": "behaviour/log_perplexity_gap_abs",
    "chi2_token": "behaviour/chi2_token",
    "chi2_sequence": "behaviour/chi2_sequence",
    "importance_weight_mean": "behaviour/importance_weight_mean",
    "importance_weight_std": "behaviour/importance_weight_std",
    "importance_weight_min": "behaviour/importance_weight_min",
    "importance_weight_max": "behaviour/importance_weight_max",
    "importance_weight_fraction_high": "behaviour/importance_weight_fraction_high",
    "importance_weight_fraction_low": "behaviour/importance_weight_fraction_low",
    "effective_sample_size": "behaviour/effective_sample_size",
    "rejected_token_fraction": "behaviour/rejected_token_fraction",
    "rejected_sequence_fraction": "behaviour/rejected_sequence_fraction",
    "groups_issued": "sampling/groups_issued",
    "prompt_length_mean": "length/prompt_mean_kept",
    "response_length_mean": "length/response_mean_kept",
    "response_length_min": "length/response_min_kept",
    "response_length_max": "length/response_max_kept",
    "truncated_share": "length/truncated_share_kept",
    "staleness_mean": "staleness/mean",
    "staleness_max": "staleness/max",
    "seconds": "timing/{}_seconds",
    "tokens_per_second": "timing/tokens_per_second",
}
"""Names of the fields of a `step` event."""

VERL = {
    "critic/rewards/mean": ("reward/mean_kept",),
    "critic/score/mean": ("reward/score_mean_kept",),
    "critic/advantages/min": ("reward/advantage_min",),
    "critic/advantages/max": ("reward/advantage_max",),
    "critic/returns/min": ("reward/advantage_min",),
    "critic/returns/max": ("reward/advantage_max",),
    "actor/pg_loss": ("actor/policy_loss",),
    "actor/kl_loss": ("actor/kl_loss",),
    "actor/entropy": ("actor/entropy",),
    "actor/lr": ("actor/lr",),
    "actor/grad_norm": ("actor/grad_norm",),
    "actor/pg_clipfrac": ("actor/clip_fraction_high", "actor/clip_fraction_low"),
    "actor/pg_clipfrac_lower": ("actor/dual_clip_fraction",),
    "actor/ppo_kl": ("actor/approx_kl",),
    "training/rollout_probs_diff_mean": ("behaviour/prob_gap_mean",),
    "training/rollout_probs_diff_max": ("behaviour/prob_gap_max",),
    "training/rollout_actor_probs_pearson_corr": ("behaviour/prob_correlation",),
    "training/off_policy/trajectory_staleness/mean": ("staleness/mean",),
    "training/off_policy/trajectory_staleness/max": ("staleness/max",),
    "rollout_corr/kl": ("behaviour/kl",),
    "rollout_corr/k3_kl": ("behaviour/kl_k3",),
    "rollout_corr/training_ppl": ("behaviour/trainer_perplexity",),
    "rollout_corr/rollout_ppl": ("behaviour/behaviour_perplexity",),
    "rollout_corr/log_ppl_diff": ("behaviour/log_perplexity_gap",),
    "rollout_corr/log_ppl_abs_diff": ("behaviour/log_perplexity_gap_abs",),
    "rollout_corr/chi2_token": ("behaviour/chi2_token",),
    "rollout_corr/chi2_seq": ("behaviour/chi2_sequence",),
    "rollout_corr/rollout_is_mean": ("behaviour/importance_weight_mean",),
    "rollout_corr/rollout_is_std": ("behaviour/importance_weight_std",),
    "rollout_corr/rollout_is_min": ("behaviour/importance_weight_min",),
    "rollout_corr/rollout_is_max": ("behaviour/importance_weight_max",),
    "rollout_corr/rollout_is_ratio_fraction_high": ("behaviour/importance_weight_fraction_high",),
    "rollout_corr/rollout_is_ratio_fraction_low": ("behaviour/importance_weight_fraction_low",),
    "rollout_corr/rollout_is_eff_sample_size": ("behaviour/effective_sample_size",),
    "rollout_corr/rollout_rs_masked_fraction": ("behaviour/rejected_token_fraction",),
    "rollout_corr/rollout_rs_seq_masked_fraction": ("behaviour/rejected_sequence_fraction",),
    "response_length/mean": ("length/response_mean_kept",),
    "response_length/min": ("length/response_min_kept",),
    "response_length/max": ("length/response_max_kept",),
    "response_length/clip_ratio": ("length/truncated_share_kept",),
    "prompt_length/mean": ("length/prompt_mean_kept",),
    "perf/total_num_tokens": ("actor/prompt_tokens", "actor/response_tokens"),
    "perf/time_per_step": ("timing/total_seconds",),
    "timing_s/step": ("timing/total_seconds",),
    "timing_s/update_actor": ("timing/train_seconds",),
    "timing_s/update_weights": ("timing/publish_seconds",),
    "timing_s/save_checkpoint": ("timing/checkpoint_seconds",),
    "timing_s/wait_for_enough_samples": ("timing/wait_seconds",),
}
"""verl's names of the same statistics; where there are two of ours, verl's is their sum."""


def values_of(batch: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a training step by name; what was not measured, or is no number, is left out.

    Args:
        batch: fields of its `batch` event.
        training: fields of its `step` event.
    """
    return dict(_named(BATCH, batch)) | dict(_named(STEP, training))


def with_verl_names(values: Mapping[str, float]) -> dict[str, float]:
    """`values`, and beside them the same under verl's names where verl has one."""
    theirs = {
        name: sum(values[part] for part in ours) for name, ours in VERL.items() if all(part in values for part in ours)
    }
    return {**values, **theirs}


def _named(names: Mapping[str, str], fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for field, name in names.items():
        value = fields.get(field)
        if isinstance(value, Mapping):
            yield from ((name.format(key), entry) for key, entry in value.items())
        elif isinstance(value, int | float):
            yield name, value
