"""The page of a report: its parts as HTML. All texts that are given are escaped here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from kbatch.escaping import html_text

__all__ = [
    "LISTED",
    "NAME_LENGTH",
    "PICTURED_ROWS",
    "advice_list",
    "beside",
    "figure",
    "legend",
    "message",
    "page",
    "remark",
    "section",
    "table",
    "tiles",
]

# The rows of a table and of a picture, and the characters of a name. Of the other rows, the number is stated.
LISTED, PICTURED_ROWS, NAME_LENGTH = 50, 12, 80

# Commands in a text, as in Markdown.
_CODE = re.compile("`([^`]+)`")
# No script, and no request to anywhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--card:#f6f7f9;--text:#1b1f24;--dim:#57606a;--line:#d5d9de;--back:#e6e9ed;
--bad:#b3261e;--warn:#8a5a00;--good:#1a7f4b;--c0:#0067a5;--c1:#c06a00;--c2:#00805a;--c3:#a8407e;--c4:#3f9bd1;
--c5:#b3261e;--c6:#6b4ca0;--c7:#7d8590;--f1:#cfe3f2;--f2:#8fbfdf;--f3:#4a94c6;--f4:#0067a5}
@media (prefers-color-scheme:dark){:root{--page:#111418;--card:#1a1f25;--text:#e4e8ec;--dim:#9aa4af;--line:#343b44;
--back:#2a3038;--bad:#ff8a80;--warn:#f0b64b;--good:#5fd39b;--c0:#5fb3f0;--c1:#f0a04b;--c2:#4cc9a0;--c3:#e58ac2;
--c4:#a5d8ff;--c5:#ff7b6e;--c6:#b79cf0;--c7:#8b949e;--f1:#1d3d55;--f2:#2a6290;--f3:#4390cb;--f4:#7cc4f8}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 20px}
header{padding-top:24px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:19px;margin:0 0 4px}
p{margin:4px 0 10px;max-width:75ch;overflow-wrap:anywhere}
.dim,figcaption,caption{color:var(--dim)}
section{margin:30px 0 0;padding-top:18px;border-top:1px solid var(--line)}
nav ul,.legend,.tiles{list-style:none;margin:8px 0;padding:0;display:flex;flex-wrap:wrap;gap:4px 14px}
a{color:var(--c0)}
.tiles{gap:10px;margin:16px 0}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 14px;flex:1 1 125px}
.tiles b{display:block;font-size:20px;line-height:1.3;font-weight:600;overflow-wrap:break-word}
.tiles span{color:var(--dim);font-size:13px}
.tiles .bad b{color:var(--bad)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:14px 28px;align-items:start}
figure{margin:8px 0;max-width:600px}
.beside{display:grid;gap:8px 34px;align-items:start}
@media (min-width:1180px){.beside{grid-template-columns:minmax(0,410px) minmax(0,1fr)}.n{white-space:nowrap}
td[data-label=file]{min-width:230px}}
figcaption{font-size:14px;margin-bottom:4px}
svg{display:block;width:100%;height:auto}
svg text{font-size:11.5px;fill:var(--text);font-family:inherit}
.grid{stroke:var(--line);stroke-width:.6}
.axis{stroke:var(--dim);stroke-width:.8}
.back{fill:var(--back)}
.c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}
.c2{fill:var(--c2);background:var(--c2)}.c3{fill:var(--c3);background:var(--c3)}
.c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}
.c6{fill:var(--c6);background:var(--c6)}.c7{fill:var(--c7);background:var(--c7)}
.f1{fill:var(--f1);background:var(--f1)}.f2{fill:var(--f2);background:var(--f2)}
.f3{fill:var(--f3);background:var(--f3)}.f4{fill:var(--f4);background:var(--f4)}
.f0{fill:var(--back);background:var(--back)}
.legend{font-size:13px;margin:4px 0 0}
.legend li{overflow-wrap:anywhere}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
.advice{list-style:none;margin:8px 0;padding:0}
.advice li{background:var(--card);border-left:4px solid var(--warn);border-radius:4px;padding:8px 14px;margin:8px 0}
.advice .problem{border-color:var(--bad)}
.advice b{overflow-wrap:anywhere}
.advice p{margin:2px 0 0;max-width:none}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
.label{font-size:12px;font-weight:600;color:var(--warn);margin-right:8px}
.problem .label{color:var(--bad)}
.ok{color:var(--good)}
table{border-collapse:collapse;margin:8px 0;width:100%;font-size:14px}
caption{text-align:left;font-size:14px;margin-bottom:4px}
th,td{padding:4px 18px 4px 0;border-bottom:1px solid var(--line);
text-align:left;vertical-align:top;overflow-wrap:anywhere}
thead th{font-weight:600;color:var(--dim);font-size:13px;vertical-align:bottom;overflow-wrap:normal}
thead th.n{white-space:normal}
tbody th{font-weight:500;min-width:110px}
td:not(.n){min-width:92px}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right;font-variant-numeric:tabular-nums}
footer{margin-top:36px;padding-bottom:36px;font-size:13px;color:var(--dim)}
@media (max-width:940px){
main,header,footer{padding-left:14px;padding-right:14px}
table,caption,tbody,tr,th,td{display:block}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tbody tr{border-bottom:1px solid var(--line);padding:6px 0}
tbody th,td{border:0;padding:1px 0}
td.n{text-align:left;white-space:normal}
td{display:flex;gap:10px}
td::before{content:attr(data-label);color:var(--dim);flex:0 0 42%}
}
@media print{section{break-inside:avoid}}
"""


def remark(text: str) -> str:
    """Return a paragraph of explanation."""
    return f'<p class="dim">{html_text(text)}</p>'


def message(text: str) -> str:
    """Return a paragraph that states that all is well."""
    return f'<p class="ok">{html_text(text)}</p>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Return the classes of colours of a picture with their meanings."""
    items = "".join(f'<li><i class="{colour}"></i>{html_text(text)}</li>' for colour, text in entries)
    return f'<ul class="legend">{items}</ul>'


def figure(caption: str, picture: str, below: str = "") -> str:
    """Return a picture with its caption, and a legend."""
    return f"<figure><figcaption>{html_text(caption)}</figcaption>{picture}{below}</figure>"


def tiles(entries: Iterable[tuple[str, str, bool]]) -> str:
    """Return a few large numbers: each with its name, and whether it is bad."""
    items = "".join(
        f"<li{' class=bad' if is_bad else ''}><b>{html_text(number)}</b><span>{html_text(name)}</span></li>"
        for number, name, is_bad in entries
    )
    return f'<ul class="tiles">{items}</ul>'


def _with_code(text: str) -> str:
    """Escape a text of this package, which marks commands as Markdown does."""
    return _CODE.sub(r"<code>\1</code>", html_text(text))


def advice_list(entries: Iterable[tuple[str, str, str, str, str]], more: int) -> str:
    """Return a list of what to change: class and text of a label, place, finding and change; and how many more."""
    items = "".join(
        f'<li class="{kind}"><span class="label">{html_text(label)}</span><b>{html_text(where)}</b>: '
        f"{html_text(finding)}"
        f"<p>{_with_code(change)}</p></li>"
        for kind, label, where, finding, change in entries
    )
    return f'<ul class="advice">{items}</ul>{remark(f"and {more:,} more") if more > 0 else ""}'


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    more: int = 0,
    texts: Collection[str] = (),
) -> str:
    """Return a table.

    Parameters
    ----------
    caption : str
    columns : sequence of str
        Their headers.
    rows : sequence of sequence of str
        The first cell of a row is its name.
    more : int
        The number of rows that are left out.
    texts : collection of str
        The columns that hold texts; the others hold numbers, except for the first.

    Notes
    -----
    On a phone each row is a block of lines. Browsers take the roles of tables from such elements, so they are explicit.
    """
    kinds = ["" if not i or name in texts else " class=n" for i, name in enumerate(columns)]
    head = "".join(
        f'<th scope="col" role="columnheader"{kind}>{html_text(name)}</th>'
        for kind, name in zip(kinds, columns, strict=True)
    )
    body = []
    for name, *cells in rows:
        line = [f'<th scope="row" role="rowheader">{html_text(name)}</th>']
        for kind, header, cell in zip(kinds[1:], columns[1:], cells, strict=True):
            line.append(f'<td role="cell"{kind} data-label="{html_text(header)}"><span>{html_text(cell)}</span></td>')
        body.append(f'<tr role="row">{"".join(line)}</tr>')
    rest = remark(f"and {more:,} more") if more > 0 else ""
    return (
        f'<table role="table"><caption>{html_text(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(body)}</tbody></table>{rest}'
    )


def beside(picture: str, rows: str) -> str:
    """Return a figure with a table next to it, or above it on a narrow screen."""
    return f'<div class="beside"><div>{picture}</div><div>{rows}</div></div>'


def section(name: str, title: str, *parts: str) -> str:
    """Return a section, which the list of contents links to."""
    return f'<section id="{name}"><h2>{html_text(title)}</h2>{"".join(parts)}</section>'


def page(title: str, about: Sequence[str], contents: Sequence[tuple[str, str]], parts: Sequence[str], end: str) -> str:
    """Return the whole page.

    Parameters
    ----------
    title : str
    about : sequence of str
        Lines below the title.
    contents : sequence of (str, str)
        The names and titles of sections.
    parts : sequence of str
        The sections, as HTML.
    end : str
        The last line.
    """
    links = "".join(f'<li><a href="#{name}">{html_text(text)}</a></li>' for name, text in contents)
    lines = "".join(f'<p class="dim">{html_text(line)}</p>' for line in about)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{html_text(title)}</h1>{lines}<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>\n{chr(10).join(parts)}\n</main>\n<footer>{html_text(end)}</footer>\n</body>\n</html>\n"
    )
