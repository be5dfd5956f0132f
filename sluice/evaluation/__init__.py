"""Evaluation: many responses to each problem of a set, judged, and what they say of the model.

`settings.py` is what is asked, `session.py` gets it done with engines and verifiers, `samples.py` keeps it in a folder,
`report.py` makes the numbers. Their form is in `sluice/evaluation_views.py`, the formulas in
`sluice/algorithms/evaluation.py`.

Inside a run the coordinator and the rollout workers get it done, and `history.py` tells what became of it.
"""
