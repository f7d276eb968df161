"""Reports: text, tables, figures and sounds in one HTML page and in Markdown.

The page embeds its pictures and sounds, so that it is a single file; the Markdown version refers to
them as separate files.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
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
th { border-bottom: 2px solid #888; } th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; overflow-x: auto; } img { max-width: 100%; height: auto; }
audio { display: block; width: 100%; }
figcaption { color: #555; font-size: .9rem; } code { background: #f3f3f3; padding: 0 .25em; }
.scroll { overflow-x: auto; }
"""


class Report:
    """A report, built section by section.

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

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[tuple[str, str]] = []  # each in Markdown and in HTML
        self._media: dict[str, bytes] = {}  # pictures and sounds by the name of the file

    def section(self, title: str) -> None:
        """Begin a section."""
        self._parts.append((f"## {title}", f"<h2>{html.escape(title)}</h2>"))

    def text(self, text: str) -> None:
        """Add a paragraph; text in `backquotes` is set as code."""
        text = " ".join(text.split())
        self._parts.append((text, f"<p>{_inline(text)}</p>"))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table; every row has an entry for each column."""
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"a row has {len(row)} entries for {len(columns)} columns")
        head, *body = (
            "| " + " | ".join(entry.replace("|", "\\|") for entry in row) + " |"
            for row in (columns, *rows)
        )
        lines = "\n".join([head, "|" + "---|" * len(columns), *body])
        titles = "".join(f"<th>{_inline(column)}</th>" for column in columns)
        cells = "\n".join(
            "<tr>" + "".join(f"<td>{_inline(entry)}</td>" for entry in row) + "</tr>"
            for row in rows
        )
        page = f'<div class="scroll"><table><tr>{titles}</tr>\n{cells}</table></div>'
        self._parts.append((lines, page))

    def figure(self, figure: Figure, name: str, caption: str = "") -> None:
        """Add a matplotlib figure; `name` is the name of its file without suffix."""
        content, name, caption = io.BytesIO(), f"{name}.png", " ".join(caption.split())
        figure.savefig(content, format="png", dpi=150)
        self._media[name] = content.getvalue()
        data = _embedded("image/png", content.getvalue())
        alt = html.escape(caption or name, quote=True)
        page = (
            f'<figure><img alt="{alt}" src="{data}">'
            f"<figcaption>{_inline(caption)}</figcaption></figure>"
        )
        self._parts.append((f"![{caption or name}]({name})", page))

    def sound(self, content: bytes, name: str, caption: str) -> None:
        """Add a player; `content` is a file of the format that the suffix of `name` says."""
        self._media[name] = content
        data = _embedded(f"audio/{Path(name).suffix[1:]}", content)
        page = (
            f'<figure><audio controls src="{data}"></audio>'
            f"<figcaption>{_inline(caption)}</figcaption></figure>"
        )
        self._parts.append((f"[{caption}]({name})", page))

    def write(self, folder: Path, name: str = "report") -> Path:
        """Write page, Markdown version and media to a folder; return the path of the page."""
        folder.mkdir(parents=True, exist_ok=True)
        for medium, content in self._media.items():
            write_whole(folder / medium, content)
        write_whole(folder / f"{name}.md", self.markdown().encode())
        page = folder / f"{name}.html"
        write_whole(page, self.html().encode())
        return page

    def markdown(self) -> str:
        """The report in Markdown."""
        return "\n\n".join([f"# {self.title}", *(text for text, _ in self._parts)]) + "\n"

    def html(self) -> str:
        """The report as an HTML page."""
        title = html.escape(self.title)
        head = (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style>"
        )
        body = (page for _, page in self._parts)
        return "\n".join([head, f"<h1>{title}</h1>", *body, "</html>\n"])


def _embedded(kind: str, content: bytes) -> str:
    """The address of a file that is part of the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _inline(text: str) -> str:
    """Text with special characters escaped and `code` in backquotes set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
