"""Where a submitted run starts: anew, where an earlier run of its name is, or at a checkpoint that is named."""

from __future__ import annotations

import os

from sluice.client import RunsClient
from sluice.config import RunSpec, parse_run_spec
from sluice.errors import ConfigError
from sluice.types import RunState
from sluice.views import RunView

DISABLED, AUTO = "disabled", "auto"


async def create(client: RunsClient, spec: RunSpec, key: str | None, resume: str) -> RunView:
    """The run that `sluice run --resume` asks for, created or, with `auto`, found again.

    Raises:
        ConfigError: there is nothing to resume from at the place that was named, or it does not fit the spec.
    """
    if resume == DISABLED:
        return await client.create(spec, key)
    if resume == AUTO:
        return await _where_it_is(client, spec, key)
    if os.sep in resume:
        return await client.create(spec, key, checkpoint=resume)
    run_id, _, step = resume.partition("@")
    if not run_id or (step and not step.isdecimal()):
        raise ConfigError(
            f"--resume {resume}: write {DISABLED}, {AUTO}, RUN, RUN@STEP, or the path of a checkpoint's folder"
        )
    return await client.fork(run_id, int(step) if step else None, spec.model_dump(mode="json"), key)


async def _where_it_is(client: RunsClient, spec: RunSpec, key: str | None) -> RunView:
    """The newest run of this name: itself while it goes on and once it has succeeded, else its newest checkpoint.

    With another spec, such as one of more steps, a run that has succeeded is gone on from like any other.
    """
    found = [run for run in await client.runs() if run.name == spec.name]
    if not found:
        return await client.create(spec, key)
    newest = await client.get(max(found, key=lambda run: run.created_at).id)
    if not newest.state.terminal:
        _check_same(spec, newest)
        return newest
    if newest.state is RunState.SUCCEEDED and newest.config_hash == spec.config_hash:
        return newest
    if not await client.checkpoints(newest.id):
        return await client.create(spec, key)
    return await client.fork(newest.id, None, spec.model_dump(mode="json"), key)


def told(run: RunView) -> str:
    """The line that says which run it is now, and where it begins if not at its model, or that it has finished."""
    origin = run.forked_from
    if run.state is RunState.SUCCEEDED:
        return f"{run.id}: {run.state} (finished with training step {run.training_steps} of {run.total_steps})"
    return f"{run.id}: {run.state}" + (f" (from step {origin.step} of {origin.run})" if origin else "")


def _check_same(spec: RunSpec, run: RunView) -> None:
    """A run that goes on cannot be given another config. Raises: ConfigError: names the fields."""
    if spec.config_hash == run.config_hash:
        return
    ours, theirs = (_flat(of) for of in (spec, parse_run_spec(run.spec or {})))
    different = sorted(name for name in ours if ours[name] != theirs.get(name))
    raise ConfigError(
        f"--resume {AUTO}: run {run.id} is {run.state} with another {', '.join(different)}; give it the same run file, "
        f"or fork it with the changes: sluice fork {run.id} --set ..."
    )


def _flat(spec: RunSpec) -> dict[str, object]:
    fields = spec.model_dump(mode="json")
    return {
        f"{section}.{key}" if key else section: value
        for section, found in fields.items()
        for key, value in (found.items() if isinstance(found, dict) else [("", found)])
    }
