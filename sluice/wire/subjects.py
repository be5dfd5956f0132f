"""Who sends what to whom: every stream, subject and key-value bucket, in one table.

stream        subject            written by          read by                      kept
LEDGER        ledger.<run>       coordinator         all                          until the run is deleted
TRAINER       trainer.<run>      trainer's rank 0    all                          until the run is deleted
PROMPTS       prompts.<run>.<n>  coordinator         rollout workers              work queue
ROLLOUTS      rollouts.<run>     rollout worker      trainer ranks, by sequence   purged up to a floor
GROUPS        groups.<run>.<n>   rollout worker      coordinator                  purged up to a floor
ARCHIVE       archive.<run>.<first>.<last>  trainer's rank 0  API                   until the run is deleted
EVENTS        events.<run>.<kind>  all               API, command line            24 hours
EVALUATIONS   evaluations.<run>    coordinator       workers, trainer, API        until the run is deleted
EVAL_PROMPTS  evalprompts.<run>.<number>.<n>  coordinator  reserved workers       work queue
EVAL_GROUPS   evalgroups.<run>.<number>.<n>   workers      coordinator            until its evaluation ends, or 7 days

bucket        key                holds
leases        coordinator.<run>, trainer.<run>       who tries; protects nothing, the ledger's fence does
leases        evaluation.<run>.<seat>                which workers are reserved for evaluations
attempts      <run>.<n>          attempts in which the engine died or refused; of an evaluation
                                 <run>.evaluation-<number>.<n>
runs          <run>              state of each run, for those who look for work
deleted       <run>              the mark of a run that was deleted: its id is not used again
workers       <run>.<worker>     rollout workers that are there, and where their time goes
trainers      <run>              the run's trainer while it is there, and where its time goes

`<number>` is that of the policy version that is evaluated.

request       control.<run>      lifecycle commands, answered by the coordinator that holds the run
"""

from __future__ import annotations

LEDGER = "LEDGER"
TRAINER = "TRAINER"
PROMPTS = "PROMPTS"
ROLLOUTS = "ROLLOUTS"
GROUPS = "GROUPS"
ARCHIVE = "ARCHIVE"
EVENTS = "EVENTS"
EVALUATIONS = "EVALUATIONS"
EVAL_PROMPTS = "EVAL_PROMPTS"
EVAL_GROUPS = "EVAL_GROUPS"

LEASES_BUCKET = "leases"
ATTEMPTS_BUCKET = "attempts"
RUNS_BUCKET = "runs"
DELETED_BUCKET = "deleted"
WORKERS_BUCKET = "workers"
TRAINERS_BUCKET = "trainers"
WORKER_TTL_SECONDS = 10.0
"""A worker or trainer that has not renewed its registration for this long is gone."""


def ledger(run_id: str) -> str:
    return f"ledger.{run_id}"


def trainer(run_id: str) -> str:
    return f"trainer.{run_id}"


def prompt(run_id: str, n: int) -> str:
    return f"prompts.{run_id}.{n}"


def prompts(run_id: str) -> str:
    return f"prompts.{run_id}.*"


def rollouts(run_id: str) -> str:
    return f"rollouts.{run_id}"


def group(run_id: str, n: int) -> str:
    return f"groups.{run_id}.{n}"


def groups(run_id: str) -> str:
    return f"groups.{run_id}.*"


def archived(run_id: str, first: int, last: int) -> str:
    """Groups between these issue numbers, both included; not all of them."""
    return f"archive.{run_id}.{first}.{last}"


def archive(run_id: str) -> str:
    return f"archive.{run_id}.*.*"


def event(run_id: str, kind: str) -> str:
    return f"events.{run_id}.{kind}"


def events(run_id: str) -> str:
    return f"events.{run_id}.*"


def control(run_id: str) -> str:
    return f"control.{run_id}"


def evaluations(run_id: str) -> str:
    return f"evaluations.{run_id}"


def evaluation_prompt(run_id: str, number: int, n: int) -> str:
    return f"evalprompts.{run_id}.{number}.{n}"


def evaluation_prompts(run_id: str, number: int | None = None) -> str:
    """Of one evaluation, by the number of its policy version, or of all."""
    return f"evalprompts.{run_id}.{'*' if number is None else number}.*"


def evaluation_group(run_id: str, number: int, n: int) -> str:
    return f"evalgroups.{run_id}.{number}.{n}"


def evaluation_groups(run_id: str, number: int | None = None) -> str:
    """Of one evaluation, by the number of its policy version, or of all."""
    return f"evalgroups.{run_id}.{'*' if number is None else number}.*"


def of_run(run_id: str) -> tuple[tuple[str, str], ...]:
    """(stream, subjects) of everything that is stored of a run: its ledger last, for while it is there the run is."""
    return (
        (PROMPTS, prompts(run_id)),
        (EVAL_PROMPTS, evaluation_prompts(run_id)),
        (EVAL_GROUPS, evaluation_groups(run_id)),
        (ROLLOUTS, rollouts(run_id)),
        (GROUPS, groups(run_id)),
        (ARCHIVE, archive(run_id)),
        (EVENTS, events(run_id)),
        (EVALUATIONS, evaluations(run_id)),
        (TRAINER, trainer(run_id)),
        (LEDGER, ledger(run_id)),
    )
