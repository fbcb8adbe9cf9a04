"""A figure as files and as SVG text: the same bits for the same data.

Canvases are asked directly, because ``Figure.savefig`` draws everything twice for the sake of automatic layout.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

from unimoe.analysis.figures.style import FONT, STYLE
from unimoe.core.io import atomic_path

DPI = 150  # of PNG files, and of images within PDF and SVG
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_PAGE_WIDE = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BLACK = re.compile(r"#000000\b")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def save(figure: Figure, stem: Path) -> Path:
    """Write ``{stem}.pdf`` and ``{stem}.png``, without dates, and return the PNG file."""
    png = stem.with_name(f"{stem.name}.png")
    with mpl.rc_context(STYLE):
        for text in figure.findobj(Text):
            if isinstance(text, Text):
                text.set_fontfeatures(["-liga"])  # a ligature makes the PDF embed a second font, 0.2 s a file
                text.set_text(_CONTROL.sub("\ufffd", text.get_text()))  # XML, and so SVG, holds no control characters
        figure.dpi = DPI
        with atomic_path(png) as temporary:
            FigureCanvasAgg(figure).print_png(temporary, pil_kwargs={"format": "png", "compress_level": 4})  # type: ignore[no-untyped-call]
        with atomic_path(stem.with_name(f"{stem.name}.pdf")) as temporary:
            FigureCanvasPdf(figure).print_pdf(temporary, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
    return png


def to_svg(figure: Figure, name: str) -> str:
    """Return the figure as an ``<svg>`` element to be set into an HTML page beside others.

    Text stays text, the background is transparent, and what is black takes the page's colour of text, so that it can be
    read in dark mode. Every id begins with ``name``, unique in the page, of letters, digits, ``-`` and ``_``.
    """
    buffer = io.StringIO()
    figure.dpi = DPI  # the PDF backend leaves it at 72
    figure.patch.set_visible(False)
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]
    figure.patch.set_visible(True)
    root = ET.fromstring(buffer.getvalue())  # noqa: S314 - written here
    for parent in list(root.iter()):  # metadata says nothing here, and a style sheet would hold for the whole page
        for child in [child for child in parent if child.tag in _PAGE_WIDE]:
            parent.remove(child)
    root.attrib |= {"role": "img", "fill": "currentColor", "stroke-linejoin": "round", "stroke-linecap": "butt"}
    for element in root.iter():
        element.attrib.update({key: _inlined(key, value, name) for key, value in element.attrib.items()})
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    return ET.tostring(root, encoding="unicode")


def _inlined(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key in ("href", f"{{{_XLINK}}}href") and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    if key in ("style", "fill", "stroke", "clip-path"):
        value = value.replace(f"'{FONT}'", f"'{FONT}', Verdana, sans-serif")
        return _BLACK.sub("currentColor", _REFERENCE.sub(rf"url(#{name}-\1)", value))
    return value
