"""Benchmarks: each measures its sides beside one another in one run. `README.md` says how to read them."""
