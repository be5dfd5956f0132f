"""The run that an installation submits by itself: what it is, and when it is another one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from services.coordinator.rules import rollouts_room
from sluice.cli.resolve import resolve
from sluice.config import RunSpec
from tests.deploy.charts import EXAMPLES, Rendered, Resource, command_line, render, render_example


def submission(rendered: Rendered, folder: Path) -> tuple[str, RunSpec, str]:
    """(name of the Job, the run as the command line would submit it, its idempotency key)."""
    (job,) = (
        job for job in rendered.of_kind("Job") if job["metadata"]["labels"]["app.kubernetes.io/component"] == "run"
    )
    made = job["spec"]["template"]["spec"]["containers"][0]
    (config,) = (c for c in rendered.of_kind("ConfigMap") if "run.toml" in c["data"])
    (folder / "run.toml").write_text(config["data"]["run.toml"])
    words = dict(word.split("=", 1) for word in made["args"] if word.startswith("--idem"))
    overrides = [word.removeprefix("--set=") for word in made["args"] if word.startswith("--set=")]
    return job["metadata"]["name"], resolve(folder / "run.toml", overrides), words["--idempotency-key"]


@pytest.mark.parametrize("example", [path.stem for path in EXAMPLES])
def test_the_run_of_an_example_is_valid_and_finds_its_model_and_data(example: str, tmp_path: Path) -> None:
    rendered = render_example(example)
    _, spec, key = submission(rendered, tmp_path)
    engine = rendered.container("rollout", "engine")
    assert spec.model.path in shlex.join([*command_line(engine), *rendered.environment(engine).values()])
    assert spec.weights.transport == "shared"
    made = {f"/assets/{word}" for pod in rendered.pods() if pod[0] == "prepare" for word in prepared(pod[1])}
    assert all(any(path.startswith(place) for place in made) for path in (spec.model.path, *spec.data.train_files))
    assert re.fullmatch(r"[\x21-\x7e]{1,200}", key)  # what the API takes
    room = rendered.environment(rendered.container("coordinator"))["SLUICE_ROLLOUTS_BYTES"]
    assert rollouts_room(spec) <= int(room)


def prepared(pod: Resource) -> set[str]:
    markers = [entry["value"] for c in pod["spec"]["initContainers"] for entry in c["env"] if entry["name"] == "MARKER"]
    return {re.sub(r"-[0-9a-f]{10}$", "", marker.rpartition("/")[2]) for marker in markers}


def test_a_run_is_submitted_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    name, _, key = submission(render_example("laptop"), tmp_path)
    again = submission(render_example("laptop", "--set=coordinator.replicas=3"), tmp_path)
    assert (again[0], again[2]) == (name, key)
    upgraded = submission(render_example("laptop", "--set=images.tag=0.2.0"), tmp_path)
    assert upgraded[0] != name and upgraded[2] == key  # Kubernetes refuses to change a Job
    for change in ("run.key=second", "run.overrides.trainer\\.total_steps=30"):
        other, spec, other_key = submission(render_example("laptop", "--set", change), tmp_path)
        assert other != name and other_key != key
        assert spec.trainer.total_steps == (30 if "steps" in change else 20)
    assert not any("run.toml" in c["data"] for c in render().of_kind("ConfigMap"))
