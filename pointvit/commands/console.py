"""Where the commands print."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    """Wide where the output is no terminal, so that file names are not cut."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=160)
