"""What is said around a bare problem: named prompt styles, each asking for the answer where a verifier looks for it."""

from __future__ import annotations

from sluice.config.source import PromptStyle

_TEMPLATES: dict[PromptStyle, str] = {
    # The published recipe's words: the last line carries the answer (verifiers math_dapo and math).
    "dapo": (
        "Solve the following math problem step by step. The last line of your response should be of the form "
        "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    ),
    # For verifier math, or math_dapo in its strict form.
    "boxed": "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
    # For verifier gsm8k.
    "gsm8k": '{problem}\n\nThink step by step. End with a line that has "#### " and the answer as a plain number.',
}


def styled(problem: str, style: PromptStyle | None) -> str:
    """The problem in the words of a style, or as it is."""
    return problem if style is None else _TEMPLATES[style].format(problem=problem)
