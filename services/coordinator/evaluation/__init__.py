"""Evaluations inside a run."""
