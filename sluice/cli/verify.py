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
    str | None,
    typer.Option(help="Name of a verifier, e.g. math, gsm8k, or a weighted sum such as math+0.2*style."),
]
Compare = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="Judge with two verifiers: the rows they disagree on, then a report."),
]
CheckTruths = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only say which ground truths this verifier cannot judge by.")
]
Out = Annotated[Path | None, typer.Option(help="File for the lines; default: standard output.")]


def verify(
    file: File, verifier: Verifier = None, compare: Compare = None, check_truths: CheckTruths = None, out: Out = None
) -> None:
    """Judge each row of a file: one line out for each, with kind, score, acc and the extracted answer."""
    if sum(map(bool, (verifier, compare, check_truths))) != 1:
        raise typer.BadParameter("give one of --verifier NAME, --compare A B and --check-truths NAME")
    options = ["--verifier", verifier] if verifier else []
    options += ["--compare", *compare] if compare else []
    options += ["--check-truths", check_truths] if check_truths else []
    options += ["--out", str(out)] if out else []
    # A process of its own: the verifiers belong to the reward service, which only its own package imports.
    command = [sys.executable, "-m", "services.reward", "verify", str(file), *options]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
