"""The CPU engine: a process of its own that serves the part of SGLang's HTTP API that RL needs."""
