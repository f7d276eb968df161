"""Reports: text, tables and figures in one HTML page and in Markdown.

The page embeds its pictures, so that it is a single file; the Markdown version refers to them as
separate files.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #888; font-weight: 600; } th:first-child, td:first-child {
text-align: left; } tr.best td { font-weight: 600; }
figure { margin: 1rem 0; overflow-x: auto; } img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .9rem; } code { background: #f3f3f3; padding: 0 .25em; }
.scroll { overflow-x: auto; }
"""


@dataclass(frozen=True)
class _Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Picture:
    name: str
    content: bytes
    caption: str


@dataclass
class Report:
    """A report, built section by section.

    Parameters
    ----------
    title
        The title.

    Examples
    --------
    >>> report = Report("Codes")
    >>> report.section("Time")
    >>> report.table(["coder", "us"], [["exact", "3.7"]])
    >>> print(report.markdown())
    # Codes
    <BLANKLINE>
    ## Time
    <BLANKLINE>
    | coder | us |
    |---|---|
    | exact | 3.7 |
    <BLANKLINE>
    """

    title: str
    parts: list[tuple[str, str] | _Table | _Picture] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begin a section."""
        self.parts.append(("section", title))

    def text(self, text: str) -> None:
        """Add a paragraph; text in `backquotes` is set as code."""
        self.parts.append(("text", " ".join(text.split())))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table; every row has an entry for each column."""
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"a row has {len(row)} entries, but there are {len(columns)}")
        self.parts.append(_Table(tuple(columns), tuple(tuple(row) for row in rows)))

    def figure(self, figure: Figure, name: str, caption: str = "") -> None:
        """Add a matplotlib figure; `name` is the name of its file without suffix."""
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150)
        self.parts.append(_Picture(f"{name}.png", content.getvalue(), " ".join(caption.split())))

    def write(self, folder: Path, name: str = "report") -> Path:
        """Write page, Markdown version and pictures to a folder; return the path of the page."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            if isinstance(part, _Picture):
                write_whole(folder / part.name, part.content)
        write_whole(folder / f"{name}.md", self.markdown().encode())
        page = folder / f"{name}.html"
        write_whole(page, self.html().encode())
        return page

    def markdown(self) -> str:
        """The report in Markdown."""
        blocks = [f"# {self.title}"]
        for part in self.parts:
            match part:
                case ("section", title):
                    blocks.append(f"## {title}")
                case ("text", text):
                    blocks.append(text)
                case _Table(columns, rows):
                    lines = [columns, ["---"] * len(columns), *rows]
                    blocks.append("\n".join(_row(line) for line in lines))
                case _Picture(name, _, caption):
                    blocks.append(f"![{caption or name}]({name})")
        return "\n\n".join(blocks) + "\n"

    def html(self) -> str:
        """The report as an HTML page."""
        body = [f"<h1>{html.escape(self.title)}</h1>"]
        for part in self.parts:
            match part:
                case ("section", title):
                    body.append(f"<h2>{html.escape(title)}</h2>")
                case ("text", text):
                    body.append(f"<p>{_inline(text)}</p>")
                case _Table(columns, rows):
                    body.append(_html_table(columns, rows))
                case _Picture(name, content, caption):
                    data = base64.b64encode(content).decode()
                    alt = html.escape(caption or name, quote=True)
                    body.append(
                        f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
                        f"<figcaption>{_inline(caption)}</figcaption></figure>"
                    )
        head = (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style>"
        )
        return "\n".join([head, *body, "</html>\n"])


def _row(entries: Sequence[str]) -> str:
    if all(entry == "---" for entry in entries):
        return "|" + "|".join(entries) + "|"
    return "| " + " | ".join(entry.replace("|", "\\|") for entry in entries) + " |"


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_inline(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{_inline(entry)}</td>" for entry in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'


def _inline(text: str) -> str:
    """Text with special characters escaped and `code` in backquotes set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
