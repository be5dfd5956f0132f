"""`sluice verify`: judge a file of responses, without any service running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    Path, typer.Argument(metavar="FILE.jsonl", help="Rows with `response` and `ground_truth`.", show_default=False)
]
Verifier = Annotated[
    str, typer.Option("--verifier", help="Name of the verifier, e.g. math_dapo, exact, gsm8k.", show_default=False)
]
Out = Annotated[Path | None, typer.Option("--out", help="File for the verdicts; default: standard output.")]


def verify(file: File, verifier: Verifier, out: Out = None) -> None:
    """Judge each row of a file: one line out for each, with kind, score, acc and the extracted answer."""
    # A process of its own: the verifiers belong to the reward service, which only its own package imports.
    command = [sys.executable, "-m", "services.reward", "verify", str(file), "--verifier", verifier]
    command += ["--out", str(out)] if out else []
    raise typer.Exit(subprocess.run(command, check=False).returncode)
