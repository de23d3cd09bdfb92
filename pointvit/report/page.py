"""A page of results as one HTML file: light, printable, usable with a keyboard and on a phone."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from pointvit.checkpoints.writing import new_file
from pointvit.report.parts import Part, escaped

PACKAGES = ("pointvit", "torch", "pytorch-lightning", "numpy", "matplotlib")


@dataclass
class Page:
    """Title, what came out in a sentence or two, and sections.

    ::

        page = Page("Transfer", "The weights helped.", ["pointvit", "transfer", "--seeds", "3"])
        page.section("Results", paragraph("..."), table(header, rows, "Test accuracy (%)"))
        page.save("runs/transfer/index.html")

    Attributes:
        title: of the page, also in the browser's bar.
        lead: the result in plain words.
        command: the command that made the page, as its words or as one line.
        style: further CSS.
        script: JavaScript, for figures that answer; by default there is none, and none is allowed to run.
    """

    title: str
    lead: str
    command: str | Sequence[str]
    style: str = ""
    script: str = ""
    _sections: list[tuple[str, tuple[Part, ...]]] = field(default_factory=list, init=False, repr=False)

    def section(self, title: str, *parts: Part) -> None:
        """Adds a section, which the list of contents names."""
        self._sections.append((title, parts))

    def html(self) -> str:
        """The page's text."""
        command = self.command if isinstance(self.command, str) else shlex.join(self.command)
        titles = enumerate((title for title, _ in self._sections), start=1)
        contents = "\n".join(f'<li><a href="#s{i}">{escaped(title)}</a></li>' for i, title in titles)
        parts = {
            "title": escaped(self.title),
            "lead": escaped(self.lead),
            "css": _asset("page.css") + self.style,
            "scripts": "script-src 'unsafe-inline'; " if self.script else "",
            "script": f"<script>{self.script}</script>\n" if self.script else "",
            "contents": contents,
            "sections": "\n".join(self._section(i) for i in range(len(self._sections))),
            "command": escaped(command),
            "versions": escaped(", ".join(versions())),
        }
        # In one pass, so that what is put in is not searched for names to replace.
        return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page; one of that name is replaced once the new one is complete.

        Raises:
            OSError: where it cannot be written.
        """
        text = self.html()
        with new_file(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return Path(path)

    def _section(self, index: int) -> str:
        title, parts = self._sections[index]
        name = f"s{index + 1}"
        body = "\n".join(part.html(f"{name}-{i}") for i, part in enumerate(parts, start=1))
        return (
            f'<section id="{name}" aria-labelledby="{name}-title">\n'
            f'<h2 id="{name}-title">{escaped(title)}</h2>\n{body}\n</section>'
        )


def versions() -> list[str]:
    """``name version`` of this library, Python and what the numbers depend on."""
    return [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in PACKAGES)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(version unknown)"


def _asset(name: str) -> str:
    return files("pointvit.report").joinpath(name).read_text(encoding="utf-8")
