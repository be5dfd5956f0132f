"""A run's training steps in the trackers that people compare runs with: JSONL, TensorBoard, Weights & Biases.

A follower of the run's events writes them: no service knows of it, and it may start anywhere, late, and again. The
libraries of a tracker are loaded when a target of its kind is opened, and come with the extra `tracking`.
"""
