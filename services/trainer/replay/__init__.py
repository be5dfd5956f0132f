"""Train a recorded run again, and compare."""
