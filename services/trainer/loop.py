"""The trainer's main loop: one run, from the checkpoint it was restored at to its last batch."""

from __future__ import annotations

from services.trainer.agenda import Agenda, Finish, Idle, Item, Save, Train
from services.trainer.ranks import Ranks
from services.trainer.trainer import Trainer


def follow(trainer: Trainer, agenda: Agenda | None, ranks: Ranks) -> None:
    """Train what LEDGER says, in its order, until the run needs no trainer any more.

    consumes:     BATCH and STATE records (LEDGER), in order, each once; rollouts (ROLLOUTS), by sequence
    produces:     a policy version for each batch and a checkpoint when due (TRAINER records), step events (EVENTS)
    waits for:    the next LEDGER record, for as long as the run lives
    unblocked by: the coordinator, when a batch is full or a person pauses or stops the run
    on failure:   the process ends; all ranks start again from the newest whole checkpoint, under the next lineage,
                  and replay the same batches. A refused append (FencedError) means that another trainer has the run
    """
    if trainer.forked:
        # From here on nothing of the other run is needed, which may clear up or be deleted.
        trainer.save()
        trainer.settle(wait=True)
    trainer.publish()
    while True:
        trainer.settle()
        following: Item | None = agenda.next() if agenda else None
        match item := ranks.share(following):
            case Train():
                trainer.step(item)
            case Save():
                trainer.save()
                trainer.settle(wait=True)
            case Idle():
                continue
            case Finish():
                trainer.settle(wait=True)
                return
