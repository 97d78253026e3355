"""Colours, once for light and once for dark, and how charts use them.

A chart names a colour as `var(--name)`. On the page the browser looks the name up, so one chart serves light, dark and
print. In a saved picture the light value replaces the name.
"""

import json
from typing import Any

COLOURS = {
    "ground": ("#ffffff", "#15181d"),
    "surface": ("#f5f7f9", "#1d2128"),
    "ink": ("#1b2026", "#e7eaee"),
    "muted": ("#59636e", "#a4adb8"),
    "rule": ("#dde2e7", "#353c46"),
    "accent": ("#1c5fb8", "#82b4fb"),
    "alarm": ("#a8281f", "#ff9a8d"),
    "alarm-ground": ("#fdf1ef", "#331c1b"),
    "blue": ("#1c5fb8", "#82b4fb"),
    "orange": ("#c05206", "#f5a262"),
    "teal": ("#0a7868", "#58c9b3"),
    "purple": ("#7b4ba6", "#c9a5f0"),
    "ochre": ("#9a7400", "#dcc257"),
    "pink": ("#b32d6b", "#f491bb"),
    "slate": ("#56687c", "#a9bdd3"),
    "brown": ("#7c5230", "#d0a687"),
}
"""Light and dark value of each name."""
SERIES = ("blue", "orange", "teal", "purple", "ochre", "pink", "slate", "brown")
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2))
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', sans-serif"


def colour(name: str) -> str:
    """The reference to a colour in a chart."""
    return f"var(--{name})"


def variables(dark: bool) -> str:
    """The CSS declarations of all colours, light or dark."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in COLOURS.items())


def in_light_colours(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart's description with the light colours in place of their names."""
    text = json.dumps(spec)
    for name, (value, _) in COLOURS.items():
        text = text.replace(colour(name), value)
    chart: dict[str, Any] = json.loads(text)
    return chart


def config() -> dict[str, Any]:
    """The Vega-Lite configuration that all charts share."""
    label_style = {
        "labelColor": colour("muted"),
        "titleColor": colour("muted"),
        "labelFontSize": 11,
        "titleFontSize": 12,
    }
    return {
        "font": FONT,
        "background": None,
        "view": {"stroke": None},
        "axis": {
            **label_style,
            "titleFontWeight": "normal",
            "domainColor": colour("rule"),
            "tickColor": colour("rule"),
            "gridColor": colour("rule"),
            "gridOpacity": 0.7,
            "labelPadding": 4,
        },
        "axisX": {"grid": False, "labelAngle": 0},
        "axisY": {"domain": False, "ticks": False, "titlePadding": 8},
        "legend": {**label_style, "titleFontWeight": "normal", "symbolStrokeWidth": 2, "labelLimit": 360},
        "title": {
            "color": colour("ink"),
            "fontSize": 13,
            "fontWeight": 600,
            "anchor": "start",
            "frame": "group",
        },
    }
