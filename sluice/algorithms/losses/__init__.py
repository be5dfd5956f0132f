"""The loss of a training step and its metrics: pure functions of tensors, one entry a trained response token.

All tensors are floating point of one dtype and of shape [n], n the response tokens at hand, unless they say otherwise;
log-probs are in nats. Token losses are summed with the weights of `sluice.algorithms.aggregation`; a token's loss is

    importance weight · policy loss + kl_loss_coef · KL estimate − entropy_coeff · entropy

`policy` has the policy losses, `kl` the estimates, `correction` what is done about behaviour policies that are not the
proximal one, `statistics` the metrics, and `responses` says which tokens belong together.
"""

from sluice.algorithms.losses.correction import (
    Rejection,
    RejectionRule,
    WeightRule,
    importance_weights,
    kept_tokens,
    raw_weights,
)
from sluice.algorithms.losses.kl import KlType, kl_estimate
from sluice.algorithms.losses.policy import (
    LOG_RATIO_LIMIT,
    ClipRange,
    LossMode,
    TokenLoss,
    cispo_token_loss,
    dapo_token_loss,
    gspo_token_loss,
    policy_token_loss,
)
from sluice.algorithms.losses.responses import Responses
from sluice.algorithms.losses.statistics import GapSums, UpdateSums, gap_sums, merge, update_sums

__all__ = [
    "LOG_RATIO_LIMIT",
    "ClipRange",
    "GapSums",
    "KlType",
    "LossMode",
    "Rejection",
    "RejectionRule",
    "Responses",
    "TokenLoss",
    "UpdateSums",
    "WeightRule",
    "cispo_token_loss",
    "dapo_token_loss",
    "gap_sums",
    "gspo_token_loss",
    "importance_weights",
    "kept_tokens",
    "kl_estimate",
    "merge",
    "policy_token_loss",
    "raw_weights",
    "update_sums",
]
