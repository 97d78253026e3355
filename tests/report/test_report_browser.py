"""The page in a real browser."""

import io
import os
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits
from synthetic_runs import make_run
from test_report_page import EVIL

from cop2l.cli import main
from cop2l.report.page import page
from cop2l.report.runs import find_runs

pytestmark = pytest.mark.browser

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture
def path(html, tmp_path):
    """The page of the invented runs."""
    (tmp_path / "report.html").write_text(html)
    return tmp_path / "report.html"


@pytest.fixture
def opened(chromium):
    """A function that opens a page and collects whatever it complains about or tries to load."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)

        def open_page(path, *, unfolded=True, **context):
            tab = browser.new_context(**context).new_page()
            complaints = []
            tab.on("console", lambda message: complaints.append(message.text))
            tab.on("pageerror", lambda error: complaints.append(str(error)))
            tab.on("dialog", lambda dialog: complaints.append(dialog.message))
            tab.on("request", lambda request: request.url == path.as_uri() or complaints.append(request.url))
            tab.goto(path.as_uri())
            if unfolded:
                tab.evaluate("document.querySelectorAll('details.fold').forEach(fold => fold.open = true)")
                tab.wait_for_function("!document.querySelector('.chart:empty')", timeout=60_000)
            return tab, complaints

        yield open_page
        browser.close()


def test_the_page_in_chromium(opened, path):
    tab, complaints = opened(path, viewport={"width": 1280, "height": 900})
    charts = tab.locator(".chart")
    assert charts.count() == tab.locator(".chart svg").count() > 20
    assert tab.locator("#comparison table").count() == 2  # two streams
    assert tab.locator("#comparison tbody tr").count() == 5
    assert (
        tab.locator("[data-figure=bounds] .chart").first.locator("path[aria-roledescription='line']").count()
        == 0
    )
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = tab.evaluate("getComputedStyle(document.querySelector('.chart text')).fill")

    # A figure answers to hovering: the tooltip lists every series of the task under the pointer.
    chart = charts.first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tooltip = tab.locator("#vg-tooltip-element")
    assert not tooltip.is_visible()
    tab.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.5)
    tab.mouse.move(box["x"] + box["width"] * 0.56, box["y"] + box["height"] * 0.5)
    tooltip.wait_for(state="visible", timeout=5_000)
    assert "certified bound" in tooltip.inner_text()

    # The keyboard reaches the numbers behind a figure.
    summary = tab.locator("[data-figure=bounds] summary").first
    summary.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("[data-figure=bounds] details table").first.is_visible()

    # Printed, it fits the paper, also where the screen is dark.
    tab.emulate_media(media="print", color_scheme="dark")
    tab.set_viewport_size({"width": 680, "height": 900})
    tab.wait_for_function(
        "document.documentElement.scrollWidth <= 680", timeout=20_000
    )  # charts follow the window
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == light
    assert tab.pdf(format="A4").startswith(b"%PDF")
    assert complaints == []

    phone, complaints = opened(path, viewport={"width": 360, "height": 740}, color_scheme="dark")
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    assert (
        phone.evaluate("Math.max(...[...document.querySelectorAll('.chart svg')].map(s => s.clientWidth))")
        <= 360
    )
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert phone.evaluate("getComputedStyle(document.querySelector('.chart text')).fill") != ink
    assert complaints == []


def test_the_command_is_whole_and_can_be_copied(opened, path):
    for width in (1280, 360):
        tab, complaints = opened(path, unfolded=False, viewport={"width": width, "height": 900})
        code = tab.locator(".command code").first
        assert code.evaluate("code => code.scrollWidth <= code.parentElement.clientWidth")
        tab.evaluate("addEventListener('copy', () => { window.copied = getSelection().toString(); })")
        tab.locator(".copy").first.click()
        assert tab.evaluate("window.copied").strip() == code.inner_text().strip()
        assert tab.locator(".chart svg").count() == 0  # drawn when it is unfolded
        assert complaints == []


def test_on_a_phone_the_bounds_come_first_and_nothing_is_out_of_sight(opened, path):
    phone, complaints = opened(path, viewport={"width": 390, "height": 844})
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    for place in ("#comparison", "#runs"):
        for table in phone.locator(f"{place} table.cards").all():
            box = table.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
    first = phone.locator("#comparison tbody tr").first
    labels = first.locator("td").evaluate_all(
        "cells => cells.map(c => getComputedStyle(c, '::before').content)"
    )
    assert labels[0] == '"certified bound, worst task, %"'
    tops = first.locator("td").evaluate_all("cells => cells.map(c => c.getBoundingClientRect().top)")
    assert tops[0] == min(tops)
    ends = phone.locator("table.tasks .at-most").evaluate_all(
        "cells => cells.map(c => c.getBoundingClientRect().right)"
    )
    assert ends
    assert max(ends) <= 390
    assert complaints == []


SHOTS = {
    "report-wide": ("sites", {"viewport": {"width": 1280, "height": 1500}}),
    "report-dark": ("methods", {"viewport": {"width": 1280, "height": 1900}, "color_scheme": "dark"}),
    "report-phone": ("sites", {"viewport": {"width": 390, "height": 1760}, "color_scheme": "dark"}),
    "report-print": ("sites", {"viewport": {"width": 794, "height": 1123}}),
}
"""Which runs each picture of docs/report.md shows, and how."""


def write_sites(path):
    """The digits of scikit-learn, shared among three sites."""
    x, y = load_digits(return_X_y=True)
    lines = [[*map(int, row), ("Bern", "Genf", "Uri")[i % 3], y[i]] for i, row in enumerate(x)]
    header = [*(f"pixel{i}" for i in range(64)), "site", "digit"]
    path.write_text("\n".join(",".join(map(str, line)) for line in [header, *lines]))


@pytest.mark.long
def test_the_pictures_of_the_documentation(opened, tmp_path, monkeypatch):
    """`make screenshots` keeps what this makes."""
    pictures = Path(os.environ.get("COP2L_SCREENSHOTS", tmp_path)).resolve()
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path / "digits.csv")
    own = ["digits.csv", "label=digit", "domain=site", "scenario=domain-incremental", "claim=tasks,average"]
    assert main(["run", *own, "--out", "runs/sites"]) == 0
    for name in ("cop2l", "replay", "ewc", "finetuning"):
        assert main(["run", "digits", f"method={name}", "--out", f"runs/methods/{name}"]) == 0
    for name in ("sites", "methods"):
        Path(f"{name}.html").write_text(page(find_runs([f"runs/{name}"])))
    for shot, (name, context) in SHOTS.items():
        tab, complaints = opened(tmp_path / f"{name}.html", unfolded=False, **context)
        assert tab.locator("h1").inner_text().startswith("Certified")
        if name == "methods":
            tab.locator("#comparison").evaluate("fold => fold.open = true")
        if shot == "report-print":
            tab.emulate_media(media="print")
            tab.locator(".copy").first.wait_for(state="hidden")
            tab.add_style_tag(content="body { padding: 60px; }")  # the margin of the paper
        picture = Image.open(io.BytesIO(tab.screenshot()))
        assert picture.size == tuple(context["viewport"].values())
        picture.convert("RGB").quantize(96).save(pictures / f"{shot}.png", optimize=True)
        assert (pictures / f"{shot}.png").stat().st_size < 200_000
        assert complaints == []
    figures = Path(__file__).parents[2] / "docs" / "figures"
    for shot in SHOTS:
        with Image.open(figures / f"{shot}.png") as old:
            assert old.size == tuple(SHOTS[shot][1]["viewport"].values())


def test_html_in_files_does_nothing_in_chromium(opened, tmp_path):
    make_run(tmp_path / "runs" / "evil", stream=EVIL, not_valid=(EVIL,), preset=EVIL)
    make_run(tmp_path / "runs" / "other", stream=EVIL, preset="paper")
    path = tmp_path / "report.html"
    path.write_text(page(find_runs([tmp_path / "runs"]), title=EVIL))
    tab, complaints = opened(path)
    assert tab.title() == EVIL
    box = tab.locator("[data-figure=progress] .chart").first
    box.hover()
    assert EVIL in tab.locator("#vg-tooltip-element").inner_text()
    assert tab.locator("img").count() == 0
    assert complaints == []
