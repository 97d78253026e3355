"""A figure: panels side by side, one legend, and the table of the numbers behind it."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cop2l.errors import UserError, missing_extra
from cop2l.files import write_bytes
from cop2l.report import theme
from cop2l.report.groups import Spread
from cop2l.text import measured_percent, percent

PLAIN, BOLD = 2.0, 4.0
"""Line widths."""
LEAST_SPAN = 0.2
"""The shortest axis of measured rates: a change of one point should not look large."""
SUFFIXES = (".png", ".svg", ".pdf")
NOT_VALID = " – not valid"
"""The end of the label of a group whose certificates are not."""


@dataclass(frozen=True)
class Key:
    """An entry of the legend."""

    label: str
    colour: str
    dash: tuple[int, ...] = (1, 0)
    mark: str = "line"
    opacity: float = 1.0
    width: float = PLAIN


@dataclass(frozen=True)
class Panel:
    """One chart of a figure, and a description for readers who cannot see it."""

    title: str
    draw: Callable[[], dict[str, Any]]
    """Makes the chart; called only if Altair is installed."""
    description: str

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The chart in Vega-Lite, without width and configuration."""
        return self.draw()


@dataclass(frozen=True)
class Figure:
    """A figure on the page or in a picture."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    narrow: bool = False
    """True if a panel needs only a third of the page."""


def rate_text(value: float | Spread | None, *, upwards: bool = False) -> str:
    """A rate in per cent for tables and tooltips; `upwards` is for bounds.

    >>> rate_text(Spread(0.05121, 0.001, 3)), rate_text(0.05121, upwards=True)
    ('5.12 ± 0.10', '5.13')
    """
    if value is None:
        return "–"
    if isinstance(value, Spread):
        sd = "" if value.sd is None else f" ± {rate_text(value.sd)}"
        return rate_text(value.mean, upwards=upwards) + sd
    return (percent(value) if upwards else measured_percent(value)).removesuffix(" %")


def lines(
    series: Mapping[str, Mapping[Any, Spread]],
    keys: Sequence[Key],
    titles: tuple[str, str],
    *,
    domain: tuple[float, float] | None = None,
    upwards: Sequence[str] = (),
    bands: Mapping[str, Mapping[Any, tuple[float, float]]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Lines with bands: those of `bands`, else one standard deviation. Hovering lists the values of all series at that x.

    The series in `upwards` are bounds, which are rounded upwards. The default domain of y spans at least `LEAST_SPAN`.
    """
    import altair as alt

    x, y = titles
    positions = sorted({position for points in series.values() for position in points})
    banded = list(_banded(series, bands))
    base = alt.Chart({"values": banded}).encode(
        x=alt.X("x:O", title=x, sort=positions, axis=alt.Axis(labelOverlap=True)),
        color=alt.Color("series:N", scale=colour_scale(keys), legend=None),
    )
    spanned = widen_domain([row[name] for row in banded for name in ("low", "high")])
    scale = alt.Scale(domain=domain or spanned, nice=5)
    band = base.mark_area(fillOpacity=0.14).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    means = alt.Y("mean:Q", title=y, scale=scale, axis=alt.Axis(format="~%", tickCount=5))
    dash = alt.StrokeDash(
        "series:N",
        scale=alt.Scale(domain=[k.label for k in keys], range=[list(k.dash) for k in keys]),
        legend=None,
    )
    line = base.mark_line().encode(y=means, strokeDash=dash, strokeWidth=_line_width(keys))
    points = base.mark_point(filled=True, size=38, opacity=1).encode(y=means)
    tooltips = _tooltips(series, positions, upwards, x)
    chart: dict[str, Any] = alt.layer(band, line, points, tooltips).properties(height=230).to_dict()
    # Altair numbers the views of a selection across the process; a fixed name keeps the page the same every time.
    select = {"type": "point", "on": "pointerover", "clear": "pointerout"}
    chart["layer"][-1]["params"] = [{"name": "hovered", "select": select}]
    shade = {"param": "hovered", "empty": False, "value": 0.07}
    chart["layer"][-1]["encoding"]["opacity"] = {"condition": shade, "value": 0}
    return chart


def _line_width(keys: Sequence[Key]) -> Any:
    """The width of each series: that of its key, which is PLAIN or the largest."""
    import altair as alt

    bold = f"indexof({json.dumps([k.label for k in keys if k.width > PLAIN])}, datum.series) >= 0"
    return alt.condition(bold, alt.value(max(k.width for k in keys)), alt.value(PLAIN))


def _tooltips(
    series: Mapping[str, Mapping[Any, Spread]], positions: Sequence[Any], upwards: Sequence[str], title: str
) -> Any:
    """A layer of invisible bars, one at each position, whose tooltips list the values of all series."""
    import altair as alt

    rows = []
    for position in positions:
        texts = {
            f"s{i}": rate_text(points.get(position), upwards=label in upwards) + " %"
            for i, (label, points) in enumerate(series.items())
        }
        rows.append({"x": position, **texts})
    tooltip = [alt.Tooltip("x:O", title=title)]
    tooltip += [alt.Tooltip(f"s{i}:N", title=label) for i, label in enumerate(series)]
    bars = alt.Chart({"values": rows}).mark_rect(color=theme.colour("ink"))
    return bars.encode(x=alt.X("x:O", sort=positions), tooltip=tooltip)


def _banded(
    series: Mapping[str, Mapping[Any, Spread]], bands: Mapping[str, Mapping[Any, tuple[float, float]]]
) -> Iterator[dict[str, Any]]:
    """The points of all series with their bands: those of `bands`, else one standard deviation, within the scale."""
    least = min([0.0, *(s.mean for points in series.values() for s in points.values())])
    for label, points in series.items():
        for position, s in sorted(points.items()):
            deviation = max(least, s.mean - (s.sd or 0)), min(1.0, s.mean + (s.sd or 0))
            low, high = bands.get(label, {}).get(position, deviation)
            yield {"x": position, "series": label, "mean": s.mean, "low": low, "high": high}


def widen_domain(values: Sequence[float]) -> tuple[float, float]:
    """The domain of some rates, widened on both sides to at least `LEAST_SPAN`.

    >>> widen_domain([0.93, 0.95]), widen_domain([0.2, 0.9])
    ((0.8, 1.0), (0.2, 0.9))
    """
    low, high = min(values), max(values)
    high = min(max(1.0, high), high + max(0.0, LEAST_SPAN - (high - low)) / 2)
    return min(low, round(high - LEAST_SPAN, 9)), high


def colour_scale(keys: Sequence[Key]) -> Any:
    """The scale from the label of each series to the colour of its key."""
    import altair as alt

    return alt.Scale(domain=[k.label for k in keys], range=[theme.colour(k.colour) for k in keys])


def series_keys(labels: Sequence[str], mark: str = "line") -> tuple[Key, ...]:
    """A key for each label: the colours in turn, then the colours again with other dashes."""
    count = len(theme.SERIES)
    return tuple(
        Key(label, theme.SERIES[i % count], theme.DASHES[i // count % len(theme.DASHES)], mark)
        for i, label in enumerate(labels)
    )


def interactive(panel: Panel) -> dict[str, Any]:
    """The chart of a panel for the page, as wide as its element."""
    fit = {"type": "fit-x", "contains": "padding"}
    return panel.spec | {"width": "container", "autosize": fit, "config": theme.config()}


def save(figures: Sequence[Figure], path: Path) -> None:
    """Save all panels in one picture: PNG, SVG or PDF by the ending of the name."""
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise UserError(
            f"{path} is not the name of a picture; give --out a name that ends in .png, .svg or .pdf."
        )
    try:
        import altair  # noqa: F401
        import vl_convert
    except ImportError:
        raise missing_extra("vl-convert-python", "report", "Saving a picture") from None
    chart, version = picture(figures), vega_lite()
    if kind == ".png":
        content = vl_convert.vegalite_to_png(chart, vl_version=version, scale=2)
    elif kind == ".pdf":
        content = vl_convert.vegalite_to_pdf(chart, vl_version=version)
    else:
        content = vl_convert.vegalite_to_svg(chart, vl_version=version).encode()
    write_bytes(path, content)


def picture(figures: Sequence[Figure]) -> dict[str, Any]:
    """The panels of figures as one Vega-Lite chart with light colours and legends."""
    datasets: dict[str, Any] = {}
    blocks = []
    for figure in figures:
        panels = []
        for panel in figure.panels:
            chart = copy.deepcopy(panel.spec)
            datasets |= chart.pop("datasets", {})
            for layer in chart.get("layer", []):
                layer.pop("params", None)
                if "condition" in layer["encoding"].get("opacity", {}):
                    layer["encoding"]["opacity"] = {"value": 0}
            for encoding in _encodings(chart):
                _add_legend(encoding, figure.keys)
            panels.append(chart | {"width": 210 if figure.narrow else 330, "title": panel.title or None})
        blocks.append(
            {
                "concat": panels,
                "columns": 3 if figure.narrow else 2,
                "bounds": "flush",
                "spacing": {"row": 75, "column": 70},
                "title": {"text": figure.title, "fontSize": 15, "offset": 12},
            }
        )
    scales = {"scale": {"color": "independent", "strokeDash": "independent"}}
    stacked = {"vconcat": blocks, "spacing": 50, "resolve": scales}
    combined = {
        "$schema": figures[0].panels[0].spec["$schema"],
        **(stacked if len(blocks) > 1 else blocks[0]),
        "datasets": datasets,
        "config": theme.config() | {"background": "#ffffff"},
        "padding": 16,
    }
    return theme.in_light_colours(combined)


def _add_legend(encoding: dict[str, Any], keys: Sequence[Key]) -> None:
    """Add the legend to a saved picture; the page draws its own."""
    layout = {"orient": "bottom", "title": None, "columns": 3, "offset": 24}
    symbol = {"line": "stroke", "dot": "circle", "square": "square"}[keys[0].mark]
    for channel in ("color", "strokeDash"):
        if "legend" in encoding.get(channel, {}):
            encoding[channel]["legend"] = {**layout, "symbolType": symbol, "symbolOpacity": 1}
    if "legend" in encoding.get("opacity", {}):
        shades = {"values": [0, 0.5, 0.8, 0.9, 1], "format": "~%", "symbolFillColor": theme.colour("accent")}
        encoding["opacity"]["legend"] = {**layout, "columns": 5, "symbolType": symbol, **shades}


def vega_lite() -> str | None:
    """The Vega-Lite version of Altair, if the converter has it."""
    import altair as alt
    import vl_convert

    version = alt.SCHEMA_VERSION.lstrip("v").rsplit(".", 1)[0]
    return version if version in vl_convert.get_vegalite_versions() else None


def _encodings(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if isinstance(node.get("encoding"), dict):
            yield node["encoding"]
        for key, value in node.items():
            if key != "data":
                yield from _encodings(value)
    elif isinstance(node, list):
        for value in node:
            yield from _encodings(value)
