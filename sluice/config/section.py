"""What all sections of a run file have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: frozen, and a key nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
