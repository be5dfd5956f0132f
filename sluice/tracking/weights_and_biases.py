"""A run in Weights & Biases, online or offline, whichever its own settings (`WANDB_MODE`, `wandb offline`) say."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from sluice.errors import ConfigError
from sluice.tracking.evaluations import PREFIX, VERSION, TrackedEvaluation
from sluice.tracking.steps import TrackedStep
from sluice.tracking.target import Subject, library
from sluice.tracking.wandb_file import last_step, last_value


class WeightsAndBiases:
    """One run there, under the id of ours: whoever opens it again goes on with it, from any machine when online.

    Offline each opening adds a folder; `wandb sync` puts them together again, in order.
    """

    def __init__(self, project: str, subject: Subject) -> None:
        """`project` may begin with its entity: ENTITY/PROJECT.

        Raises:
            ConfigError: wandb refuses: no key, no such entity, a name that it cannot have.
        """
        wandb = library("wandb")
        entity, _, name = project.rpartition("/")
        # This process only follows the run: what its machine, folder and console look like says nothing about it.
        settings = wandb.Settings(
            console="off",
            quiet=True,
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        try:
            self._run = wandb.init(
                entity=entity or None,
                project=name,
                id=subject.run_id,
                name=subject.name,
                config=subject.config,
                resume="allow",
                reinit="create_new",
                settings=settings,
            )
        except wandb.errors.Error as error:
            raise ConfigError(f"wandb:{project}: {error}") from None
        if self._run.offline:
            folder = Path(self._run.dir).parent
            self.place = str(folder)
            files = sorted(folder.parent.glob(f"*run-*-{subject.run_id}/run-{subject.run_id}.wandb"))
            self.last, self.last_evaluation = last_step(files), last_value(files, VERSION)
        else:
            self.place = self._run.url or project
            self.last = max(self._run.starting_step - 1, 0)
            self.last_evaluation = int(self._run.summary.get(VERSION, -1))
        self._run.define_metric(f"{PREFIX}*", step_metric=VERSION)
        self._unsent: deque[dict[str, float]] = deque()
        """Results, each of which goes with a step to come: what is logged under a step that was sent is lost."""

    def write(self, step: TrackedStep) -> None:
        """Sent at once; wandb would keep it until the next one otherwise."""
        results = self._unsent.popleft() if self._unsent else {}
        values = {**step.values, **results, "_timestamp": step.time.timestamp()}
        self._run.log(values, step=step.number, commit=True)
        self.last = step.number

    def evaluate(self, evaluation: TrackedEvaluation) -> None:
        self._unsent.append({**evaluation.values, VERSION: float(evaluation.number)})
        self.last_evaluation = evaluation.number

    def finish(self) -> None:
        """The evaluation of the last step has no step after it."""
        while self._unsent:
            self.last += 1
            self._run.log(self._unsent.popleft(), step=self.last, commit=True)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
