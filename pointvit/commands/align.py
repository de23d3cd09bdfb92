"""``pointvit align --teacher CHECKPOINT --output FOLDER``"""

from __future__ import annotations


def run(args: list[str]) -> int:
    from pointvit.training.align_cli import run_alignment

    run_alignment(args)
    return 0
