"""Drawings of boxes, arrows and text as SVG, readable on light and dark pages: each one has its own background."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

__all__ = ["Drawing"]

# Fill and outline of boxes by kind, on light and on dark pages.
KINDS = {
    "plain": ("#eef0f3", "#8a94a3", "#2b323b", "#7d8896"),
    "blue": ("#dbe9fb", "#3f78c0", "#1d3a5f", "#6ea3e6"),
    "green": ("#d9f0de", "#3b8f52", "#1d4029", "#66bd7d"),
    "orange": ("#fdebd0", "#c07a1d", "#4d3714", "#e0a458"),
    "red": ("#fbdcdc", "#c04545", "#552222", "#e88080"),
    "purple": ("#e9e0f8", "#7a57b8", "#38275a", "#ab8ae0"),
}
# Background, outline of the background, text, and text that is less important.
LIGHT = ("#ffffff", "#d5dae1", "#1c2128", "#57606c")
DARK = ("#14181e", "#363d47", "#e6e9ed", "#a9b2bd")
# The widest advance of a character that is expected of a font, by its size.
ADVANCE, BOLD_ADVANCE, MONO_ADVANCE = 0.56, 0.62, 0.62


def _width(text: str, size: float, style: str, bold: bool) -> float:
    return len(text) * size * (MONO_ADVANCE if "mono" in style else BOLD_ADVANCE if bold else ADVANCE)


def _styles() -> str:
    def theme(colours: Sequence[str], at: int) -> str:
        background, edge, text, muted = colours
        rules = [
            f".page{{fill:{background};stroke:{edge}}}",
            f"text{{fill:{text}}}",
            f".muted{{fill:{muted}}}",
            f".line{{stroke:{muted};fill:none}}",
            f".head{{fill:{muted}}}",
        ]
        for kind, both in KINDS.items():
            rules.append(f".{kind}{{fill:{both[at]};stroke:{both[at + 1]}}}")
            rules.append(f".{kind}-line{{stroke:{both[at + 1]};fill:none}}")
            rules.append(f".{kind}-text{{fill:{both[at + 1]}}}")
        return "".join(rules)

    fonts = "text{font-family:system-ui,sans-serif}.mono{font-family:ui-monospace,Menlo,Consolas,monospace}"
    return f"{fonts}{theme(LIGHT, 0)}@media(prefers-color-scheme:dark){{{theme(DARK, 2)}}}"


class Drawing:
    """One drawing; lengths are in pixels from the upper left corner.

    Parameters
    ----------
    title, description : str
        What screen readers read instead of the drawing.
    """

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._title, self._description = title, description
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, size: float = 13, style: str = "", anchor: str = "start",
        bold: bool = False,
    ) -> None:  # fmt: skip
        """Write one line, whose baseline is at `y`; `style` is "muted", "mono" or a kind with "-text"."""
        long = _width(text, size, style, bold)
        left = x - long * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        if left < 0 or left + long > self.width:
            raise ValueError(f"text leaves the drawing: {text!r} from {left:.0f} to {left + long:.0f}")
        more = ' font-weight="600"' if bold else ""
        more += f' class="{style}"' if style else ""
        more += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{more}>{escape(text)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "plain", size: float = 12,
        style: str = "", dashed: bool = False, bold: bool = False, radius: float = 3,
    ) -> None:  # fmt: skip
        """Draw a box with centred lines of text; the first one can be bold."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{kind}"{dash}/>'
        )
        first = y + height / 2 - (len(lines) - 1) * size * 0.65 + size * 0.35
        for number, line in enumerate(lines):
            long = _width(line, size, style, bold and number == 0)
            if long > width:
                raise ValueError(f"{line!r} needs {long:.0f} of {width:.0f}")
            self.text(
                x + width / 2, first + number * size * 1.3, line, size=size, style=style, anchor="middle",
                bold=bold and number == 0,
            )  # fmt: skip

    def line(self, *points: tuple[float, float], kind: str = "", dashed: bool = False, arrow: bool = False) -> None:
        """Draw a line through points, with a head at its end if it is an arrow."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        more = ' stroke-dasharray="5 4"' if dashed else ""
        more += ' marker-end="url(#head)"' if arrow else ""
        name = f"{kind}-line" if kind else "line"
        self._parts.append(f'<polyline points="{path}" class="{name}" stroke-width="1.5"{more}/>')

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Draw an arrow through points."""
        self.line(*points, dashed=dashed, arrow=True)

    def svg(self) -> str:
        """Return the file."""
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" class="head"/></marker>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" aria-labelledby="title description">',
                f'<title id="title">{escape(self._title)}</title>',
                f'<desc id="description">{escape(self._description)}</desc>',
                f"<style>{_styles()}</style>",
                f"<defs>{head}</defs>",
                f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8" class="page"/>',
                *self._parts,
                "</svg>",
                "",
            ]
        )
