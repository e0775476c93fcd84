"""The page of a run in a real browser: it fits, it is not blank, and it asks nobody for anything."""

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from runs import HEADINGS, make_run, make_seeds
from topoff.report.page import build_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")

# A frame, because a window cannot be as narrow as a phone; the page in it is the very page, not a changed copy.
PROBE = """<!doctype html><body style="margin: 0"><iframe style="border: 0; width: {width}px; height: 900px"
srcdoc="{page}"></iframe><pre id="found"></pre><script>
onload = () => {{
  const inner = document.querySelector("iframe").contentWindow, page = inner.document;
  const boxes = [...page.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect());
  document.getElementById("found").textContent = JSON.stringify({{
    width: inner.innerWidth,
    needed: page.documentElement.scrollWidth,
    requests: inner.performance.getEntriesByType("resource").map(entry => entry.name),
    headings: [...page.querySelectorAll("h2")].map(heading => heading.textContent),
    plots: boxes.map(box => [box.width, box.height]),
    paper: inner.getComputedStyle(page.body).backgroundColor,
    ink: inner.getComputedStyle(page.querySelector("svg text") || page.body).fill,
  }});
}}
</script>"""


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a file in the browser, offline, and return what it printed."""
    assert BROWSER is not None
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    fixed += ["--no-first-run", "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"]
    fixed += [f"--user-data-dir={page.parent / 'profile'}"]
    command = [BROWSER, *fixed, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def probe(page: str, folder: Path, *options: str, width: int) -> tuple[dict[str, Any], list[str]]:
    """Measure a page in a frame of some width, and collect the messages of the console."""
    file = folder / "probe.html"
    file.write_text(PROBE.format(width=width, page=html.escape(page)), encoding="utf-8")
    done = browse(file, "--dump-dom", "--window-size=1500,1000", *options)
    found = json.loads(html.unescape(done.stdout.partition('<pre id="found">')[2].partition("</pre>")[0]))
    return found, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Make the page of one seed with many classes and a long name, of several seeds, and of regression."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one", classes=45)
    details = json.loads((folder / "one" / "details.json").read_text())
    details["per_class"][0]["class"] = details["classes"][0] = "a-very-long-name-without-any-space-in-it" * 4
    (folder / "one" / "details.json").write_text(json.dumps(details))
    make_seeds(folder / "several", seeds=2, classes=8)
    make_run(folder / "regression", task="regression")
    return {name: build_report(folder / name) for name in ("one", "several", "regression")}


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", ["one", "several", "regression"])
def test_the_page_fits_and_asks_for_nothing(pages: dict[str, str], name: str, width: int, tmp_path: Path) -> None:
    found, messages = probe(pages[name], tmp_path, width=width)
    assert messages == []
    assert found["requests"] == []
    assert found["width"] == width
    assert found["needed"] <= width
    assert len(found["plots"]) == 9
    assert all(across > 200 and down > 100 for across, down in found["plots"])
    replaced = {"one": {}, "several": {}, "regression": {"Classes": "Predictions"}}[name]
    expected = [replaced.get(heading, heading) for heading in HEADINGS]
    assert [heading for heading in found["headings"] if heading != "Seeds"] == expected


def test_the_page_follows_the_theme(pages: dict[str, str], tmp_path: Path) -> None:
    light, _ = probe(pages["several"], tmp_path, "--blink-settings=preferredColorScheme=1", width=1400)
    dark, _ = probe(pages["several"], tmp_path, "--blink-settings=preferredColorScheme=0", width=1400)
    assert (light["paper"], light["ink"]) == ("rgb(255, 255, 255)", "rgb(28, 33, 40)")
    assert (dark["paper"], dark["ink"]) == ("rgb(20, 23, 28)", "rgb(228, 231, 235)")


def test_the_probe_sees_what_it_looks_for(tmp_path: Path) -> None:
    bad = '<div style="width: 2000px">wide</div><img src="http://nowhere.invalid/a.png"><svg></svg>'
    found, messages = probe(bad, tmp_path, width=400)
    assert found["needed"] >= 2000
    assert found["requests"] or messages


@pytest.mark.parametrize(("scheme", "paper"), [("1", (255, 255, 255)), ("0", (20, 23, 28))])
def test_the_picture_is_not_blank(pages: dict[str, str], scheme: str, paper: tuple[int, ...], tmp_path: Path) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "picture.png"
    file.write_text(pages["one"], encoding="utf-8")
    options = ("--window-size=1400,1800", f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={scheme}")
    done = browse(file, *options)
    assert "CONSOLE" not in done.stderr
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    assert pixels.shape == (1800, 1400, 3)
    assert tuple(pixels[5, 5]) == paper
    assert len(np.unique(pixels @ (65536, 256, 1))) > 100  # colours
    drawn = (pixels != paper).any(axis=2)
    assert 0.02 < drawn.mean() < 0.9
    assert all(part.any() for part in np.split(drawn, 6))  # from top to bottom
