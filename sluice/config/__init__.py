"""The run file: what to learn. One TOML, validated here, immutable afterwards.

Where things are comes from the environment, never from here. Every field has a sentence; `docs/configuration.md` is
generated from this file. Unknown keys are refused. The names stay close to what verl users know; `docs/migrating.md`
maps verl's and MindSpeed RL's names to these.
"""

from sluice.config.evaluation import EvaluationConfig, EvaluationSet
from sluice.config.load import changed, load_run_spec, parse_run_spec
from sluice.config.run import RunSpec
from sluice.config.sampling import AsyncConfig, CurriculumConfig, FilterConfig, RewardConfig, RolloutConfig
from sluice.config.section import Section
from sluice.config.source import DataConfig, ModelConfig
from sluice.config.training import (
    AlgorithmConfig,
    CheckpointConfig,
    DeadlineConfig,
    LoraConfig,
    OptimConfig,
    RetryConfig,
    TrainerConfig,
    WeightsConfig,
)

__all__ = [
    "AlgorithmConfig",
    "AsyncConfig",
    "CheckpointConfig",
    "CurriculumConfig",
    "DataConfig",
    "DeadlineConfig",
    "EvaluationConfig",
    "EvaluationSet",
    "FilterConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "RetryConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunSpec",
    "Section",
    "TrainerConfig",
    "WeightsConfig",
    "changed",
    "load_run_spec",
    "parse_run_spec",
]
