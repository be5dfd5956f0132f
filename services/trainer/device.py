"""What a rank computes on, and whether it is there."""

from __future__ import annotations

import torch

from services.trainer.config import TrainerSettings
from sluice.errors import ConfigError


def on_gpu(settings: TrainerSettings) -> bool:
    """Whether this rank trains on a GPU. Raises: ConfigError: the one it wants is not there."""
    if settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available()):
        return False
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if settings.local_rank >= count:
        raise ConfigError(
            f"SLUICE_TRAINER_DEVICE={settings.device}: rank {settings.rank} wants GPU {settings.local_rank} of this "
            f"host, torch sees {count}; give it more GPUs, start fewer ranks here, or set SLUICE_TRAINER_DEVICE=cpu"
        )
    return True
