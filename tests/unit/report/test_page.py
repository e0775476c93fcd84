"""The page of a run: what is on it, what degrades, and what it refuses."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from runs import COMMAND, HEADINGS, make_details, make_metrics, make_run, make_seeds, write_json
from topoff.report import page as report
from topoff.report import read as recorded
from topoff.report.page import build_report, write_report
from topoff.training.records import Spread


class Outline(HTMLParser):
    """Collect what a page consists of, and check that its elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def named(self, attribute: str) -> list[str]:
        """List the values of an attribute over all elements."""
        return [str(attributes[attribute]) for _, attributes in self.attributes if attribute in attributes]


def few(folder: Path, *rows: dict[str, Any], **files: Any) -> Path:
    """Make a run with little in it, which is fast to draw."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, value in files.items():
        write_json(folder / f"{name}.json", value)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run") / "one")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return build_report(run)


@pytest.fixture(scope="module")
def seeds_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_report(make_seeds(tmp_path_factory.mktemp("run") / "three"))


def test_the_page_has_all_parts_in_order(page: str) -> None:
    outline = Outline(page)
    assert outline.texts["h1"] == ["wordnet"]
    assert outline.texts["h2"] == HEADINGS
    assert outline.texts["code"] == [COMMAND]
    assert outline.texts["b"] == ["gcn", "top"]


def test_the_headline_has_the_numbers_of_the_result(run: Path, page: str) -> None:
    result = json.loads((run / "result.json").read_text())
    tiles = dict(zip(Outline(page).texts["dt"], Outline(page).texts["dd"], strict=True))
    assert tiles["test accuracy"] == f"{100 * result['test']:.2f}\xa0%"
    assert tiles["validation accuracy"] == f"{100 * result['val']:.2f}\xa0%"
    assert tiles["training accuracy"] == f"{100 * result['train']:.2f}\xa0%"
    assert tiles["fidelity"] == f"{100 * result['fidelity']:.2f}\xa0%"
    assert (tiles["per epoch"], tiles["pre-processing"]) == ("420\xa0ms", "3.25\xa0s")
    assert (tiles["peak memory"], tiles["parameters"]) == ("1.50\xa0GB", "123,456")


def test_the_page_is_self_contained(page: str) -> None:
    outline = Outline(page)
    assert not re.search(r"https?:|@import|<script|<iframe|\bon\w+=", page)
    assert all(value.startswith(("#", "data:")) for name in ("href", "src") for value in outline.named(name))
    assert set(re.findall(r"url\((.)", page)) == {"#"}
    assert any(value.startswith("default-src 'none';") for value in outline.named("content"))


def test_ids_are_unique_and_references_are_kept(page: str) -> None:
    ids = Outline(page).named("id")
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)", page)) | set(re.findall(r'href="#([^"]+)"', page))
    used |= set(Outline(page).named("aria-labelledby"))
    assert len(used) > 20
    assert used <= set(ids)


def test_plots_and_tables_are_described(page: str) -> None:
    outline = Outline(page)
    plots = [attributes for tag, attributes in outline.attributes if tag == "svg"]
    assert len(plots) == 9
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in plots)
    assert len(outline.texts["caption"]) == len(outline.texts["table"])
    assert all(outline.texts["caption"])


def test_plots_have_text_and_the_colors_of_the_theme(page: str) -> None:
    assert {"epoch", "time, s", "loss", "accuracy, %", "degree"} <= set(Outline(page).texts["text"])
    assert "var(--blue)" in page
    assert "currentColor" in page
    assert "#00000" not in page
    assert "<style type" not in page  # matplotlib's own, which would restyle the page


def test_the_same_files_give_the_same_text(run: Path, page: str) -> None:
    with matplotlib.rc_context({"xtick.major.size": 20, "axes.facecolor": "red"}):  # whatever the user's settings are
        assert build_report(run) == page


def test_classes_are_sorted_by_size_and_confusions_counted(run: Path, page: str) -> None:
    details = json.loads((run / "details.json").read_text())
    wrong = np.array(details["confusion"]) * (1 - np.eye(12, dtype=int))
    true, predicted = np.unravel_index(wrong.argmax(), wrong.shape)
    names = details["classes"]
    assert f'{names[true]}</th><td class="word">{names[predicted]}</td>' in page
    assert f"{wrong.max()}</td>" in page
    assert "the bar left of 1 is the isolated nodes" in page
    largest = max(details["per_class"], key=lambda row: row["count"])
    first = page.index("Each class, the largest first")
    assert page.index(f'<th scope="row">{largest["class"]}', first) < page.index("noun.1 kind", first)
    assert f">{largest['recall']:.2%}<".replace("%", "\xa0%") in page


def test_shares_of_a_class_count_the_classes_that_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "CLASSES", 2)
    details = {"classes": ["a", "b", "c"], "confusion": [[3, 0, 1], [0, 1, 0], [0, 2, 0]]}
    page = build_report(few(tmp_path, details=details, result={"test": 0.5}))
    assert {"a", "c", "75", "25"} <= set(Outline(page).texts["text"])  # of the 4 nodes of a, and none of the 2 of c
    assert "b" not in Outline(page).texts["text"]
    assert 'c</th><td class="word">b</td>' in page
    assert "The 2 largest of 3 classes." in page


def test_several_seeds_show_mean_and_deviation(seeds_page: str) -> None:
    outline = Outline(seeds_page)
    assert outline.texts["h2"] == [HEADINGS[0], "Seeds", *HEADINGS[1:]]
    scores = [make_metrics(60, seed=seed)[-1]["test"] * 100 for seed in range(3)]
    assert f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}\xa0%" in outline.texts["dd"]
    label = next(value for value in outline.named("aria-label") if value.startswith("loss against epoch"))
    assert label.count("loss from") == 3
    assert all(f">{score:.2f}\xa0%</td>" in seeds_page for score in scores)
    assert "On the test nodes of seed 0." in seeds_page


def test_seeds_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    for seed in (10, 2):
        few(tmp_path / f"seed-{seed}", {"epoch": 1}, result={"seed": seed, "test": 0.5})
    page = build_report(tmp_path)
    assert page.index('row">2<') < page.index('row">10<')


def test_an_interrupted_run_of_several_seeds_is_summed_up(tmp_path: Path) -> None:
    for seed, score in enumerate([0.5, 0.7]):
        few(tmp_path / f"seed-{seed}", {"epoch": 1}, result={"seed": seed, "test": score, "best_epoch": 1})
    few(tmp_path / "seed-2", {"epoch": 1, "test": 0.1})
    page = build_report(tmp_path)
    assert "60.00 ± 14.14\xa0%" in page
    assert "This run was interrupted, or is still running: 2 of the 3 seeds that it began are finished." in page
    assert "Seed 2 was interrupted after epoch 1" in page
    assert "2 (interrupted)</th><td>10.00\xa0%</td>" in page
    assert "Best epoch" not in page.title().partition("Seeds</H2>")[0]


def test_a_run_that_never_finished_a_seed_has_a_page(tmp_path: Path) -> None:
    few(tmp_path / "seed-0", {"epoch": 3, "test": 0.25})
    assert "25.00 ± 0.00\xa0%" in build_report(tmp_path)


def test_the_result_of_several_seeds_alone_is_enough(tmp_path: Path) -> None:
    runs = [{"seed": 4, "test": 0.4}, {"seed": 5, "test": 0.6}]
    page = build_report(few(tmp_path, result={"test": {"mean": 0.5, "std": 0.1}, "runs": runs, "dataset": "d"}))
    assert "50.00 ± 10.00\xa0%" in page
    assert 'row">4</th><td>40.00\xa0%' in page


def test_regression_has_plain_scores_and_a_scatter(tmp_path: Path) -> None:
    page = build_report(make_run(tmp_path, epochs=3, task="regression"))
    outline = Outline(page)
    assert "Predictions" in outline.texts["h2"]
    assert "Classes" not in outline.texts["h2"]
    assert outline.texts["dd"][0] == f"{make_metrics(3)[-1]['test']:.3f}"
    assert outline.texts["text"].count("r2") == 2
    assert any(label.startswith("400 predictions against true values") for label in outline.named("aria-label"))


def test_an_interrupted_run_says_so_and_shows_the_last_numbers(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('# topoff train g\ndataset = "g"\nmetric = "micro_f1"\n')
    few(tmp_path, {"epoch": 1, "seconds": 2, "val": 0.25}, {"epoch": 2, "seconds": 4, "loss": 1.5})
    page = build_report(tmp_path)
    assert "This run was interrupted after epoch 2, or is still running: without result.json" in page
    tiles = dict(zip(Outline(page).texts["dt"], Outline(page).texts["dd"], strict=True))
    assert tiles == {
        "test micro f1": report.NOTHING,
        "validation micro f1": "25.00\xa0%",
        "training micro f1": report.NOTHING,
        "per epoch": "2.00\xa0s",
        "training": "4\xa0s",
        "epochs": "2",
    }
    assert Outline(page).texts["h2"] == ["In numbers", "Training", "Configuration", "How to repeat it"]
    assert Outline(page).texts["code"] == ["topoff train g"]


def test_a_run_that_died_at_once_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('dataset = "graph"\nmetric = "auto"\nratio = 0.1\nregroup = true\n')
    page = build_report(tmp_path)
    assert "interrupted before its first epoch ended" in page
    assert "test score" in page
    assert "<td>0.1</td>" in page
    assert "<td>true</td>" in page
    assert "How to repeat it" not in page


def test_a_cut_off_last_line_is_dropped_with_a_note(tmp_path: Path) -> None:
    few(tmp_path / "r", {"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0})
    file = tmp_path / "r" / "metrics.jsonl"
    for ending in ('{"epoch": 3, "lo', '{"epoch": 3, "lo\n', '{"epoch": 3, "name": "\xc3'):
        file.write_bytes(file.read_bytes().partition(b'{"epoch": 3')[0] + ending.encode("latin-1"))
        found = recorded.read_run(tmp_path / "r")
        assert [row.epoch for row in found.seeds[0].rows] == [1, 2]
        assert "The last line of r/metrics.jsonl was cut off and is left out." in found.notes
    assert "was cut off" in build_report(tmp_path / "r")


def test_epochs_after_a_checkpoint_count_once(tmp_path: Path) -> None:
    few(tmp_path, *({"epoch": epoch, "loss": loss} for epoch, loss in [(1, 9), (2, 8), (3, 7), (2, 5)]))
    assert [(row.epoch, row.loss) for row in recorded.read_run(tmp_path).seeds[0].rows] == [(1, 9), (2, 5)]


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"epoch": 1, "seconds": 1, "loss": math.nan, "val": None, "test": None, "fidelity": -0.5, "refreshed": True},
        {"epoch": 2, "seconds": 2, "loss": 0.5, "val": 0.5, "test": None, "fidelity": math.inf},
    ]
    result = {
        "test": None,
        "val": math.nan,
        "task": "classes",
        "metric": "accuracy",
        "best_epoch": None,
        "chosen": None,
    }
    batches = [{"nodes": 3, "certificate": None}, {"nodes": 2, "certificate": 0.5, "condition": math.inf}]
    details = {
        "batches": batches,
        "layers": [["conv", None]],
        "per_class": [{"class": "a", "count": None}, {"class": "b"}],
    }
    page = build_report(few(tmp_path, *rows, result=result, details=details))
    assert Outline(page).texts["dd"] == [report.NOTHING] * 3
    assert "The loss was not a finite number in 1 of all epochs." in page
    assert "refreshed once" in page
    assert "test from" not in page
    assert "validation from 50 to 50" in page
    assert page.index('row">2</th><td>2<') < page.index('row">1</th><td>3<')


def test_one_epoch_is_enough(tmp_path: Path) -> None:
    page = build_report(few(tmp_path, {"epoch": 1, "seconds": 0.5, "loss": 2.0}))
    assert Outline(page).texts["text"].count("loss") == 2
    assert len(re.findall(r"<use[^>]*var\(--blue\)", page)) == 2  # its dots


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_axis(tmp_path: Path) -> None:
    page = build_report(few(tmp_path, *({"epoch": epoch, "loss": 10.0**-epoch} for epoch in range(1, 7))))
    assert "0.0001" in Outline(page).texts["text"]


@pytest.mark.parametrize(
    ("details", "heading"),
    [
        ({}, None),
        ({"confusion": [[0, 0], [0, 0]], "batches": [], "degrees": {"edges": [], "counts": []}, "scatter": []}, None),
        ({"degrees": {"edges": [0, 1], "counts": [3]}}, None),
        ({"degrees": {"edges": [1, 2, math.inf], "counts": [3, 1]}}, None),
        ({"degrees": {"edges": [1, 2, 4], "counts": [3, 1]}}, "Degrees"),
        ({"per_class": [{"class": "a", "count": 3, "f1": 0.5}]}, "Classes"),
        ({"confusion": [[2, 1], [0, 1]]}, "Classes"),
        ({"batches": [{"nodes": 3}]}, "Batches"),
        ({"layers": [["conv", 0.5]]}, "Fidelity"),
        ({"scatter": [[1.0, 2.0], [None, 1.0]]}, "Predictions"),
    ],
)
def test_what_is_missing_is_left_out(tmp_path: Path, details: dict[str, Any], heading: str | None) -> None:
    page = build_report(few(tmp_path, result={"test": 0.5}, details=details))
    assert Outline(page).texts["h2"] == ["In numbers", *([heading] if heading else [])]


def test_user_text_is_escaped(tmp_path: Path) -> None:
    bad = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>"
    names = [bad, '$a_1$ id="x"', "\u4e2d\u6587 \x00\x1b \ud800"]
    details = {"classes": names, "confusion": [[3, 1, 0], [0, 3, 0], [1, 0, 3]], "layers": [[bad, 0.1]]}
    details["per_class"] = [{"class": name, "count": 3} for name in names]
    result = dict.fromkeys(("dataset", "model", "method", "command", "date"), bad)
    result["metric"] = f"\x00{bad}"
    result |= {"chosen": [{"what": bad, "value": bad, "why": bad}], "machine": {bad: bad}, "versions": {bad: bad}}
    folder = few(tmp_path, {"epoch": 1, "loss": 1.0, "test": 0.5}, result=result, details=details)
    (folder / "config.toml").write_text(f"# {bad}\n{json.dumps(bad)} = {json.dumps(bad)}\n")
    page = write_report(folder).read_text(encoding="utf-8")
    assert not re.search(r"<script|<img", page)
    outline = Outline(page)
    assert outline.texts["h1"] == [bad]
    assert outline.texts["code"] == [bad]
    assert {names[1], f"{bad[:23]}…"} <= set(outline.texts["text"])
    assert "\u4e2d\u6587" in page


def test_a_long_run_of_many_classes_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "POINTS", 100)
    make_run(tmp_path, epochs=450)
    write_json(tmp_path / "details.json", make_details(60, batches=700))
    page = build_report(tmp_path)
    assert len(page.encode()) < 1_000_000
    assert "Long curves are thinned to 100 points." in page
    assert max(path.count("L") for path in re.findall(r'<path d="([^"]*)" clip-path="url\(#loss', page)) <= 100
    assert "The 50 largest of 60 classes." in page
    assert "The 500 of 700 batches that miss most" in page
    assert page.count('<th scope="row">noun.') > 40


def test_the_page_is_written_next_to_the_run_or_elsewhere(tmp_path: Path) -> None:
    folder = few(tmp_path / "run", {"epoch": 1, "loss": 1.0})
    assert write_report(folder) == folder / "report.html"
    assert write_report(folder, out=tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert (folder / "report.html").read_text(encoding="utf-8") == (tmp_path / "new" / "page.html").read_text(
        encoding="utf-8"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "report.html"]


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        assert "<!doctype html>" in Path(source).read_text(encoding="utf-8")
        raise OSError("disk full")

    folder = few(tmp_path, {"epoch": 1})
    (folder / "report.html").write_text("old")
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(folder)
    assert (folder / "report.html").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "report.html"]


def test_a_folder_as_target_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^Expected out to be a file \(got the folder .*\); add a name, as in .*\.$"):
        write_report(run, out=tmp_path)


@pytest.mark.parametrize("name", ["missing", "empty", "empty/file"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").write_text("{}")
    with pytest.raises(ValueError, match=rf"^Expected run to be a folder with .* \(got .*{name}\); give the folder"):
        build_report(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "result.json",
            b'{\n"test": 0.5,\n"val',
            r"result\.json to hold a JSON object \(got Unterminated .* in line 3\)",
        ),
        ("result.json", b"", r"result\.json to hold a JSON object \(got Expecting value in line 1\)"),
        ("result.json", b"[1]", r"result\.json to hold a JSON object \(got a list in line 1\)"),
        ("details.json", b'{"a":\n"\xff"}', r"details\.json to hold .* \(got bytes that are not UTF-8 in line 2\)"),
        ("metrics.jsonl", b'{"epoch": 1}\n{"ep\n{"epoch": 3}\n', r"metrics\.jsonl to hold .* in line 2\)"),
        ("metrics.jsonl", b'{"epoch": 1}\n\n{"loss": 1}\n', r"metrics\.jsonl to give .* \(got None in line 3\)"),
        ("config.toml", b"a = 1\nb = \n", r"config\.toml to be TOML, .* \(got 'b =' in line 2: invalid value\)"),
        ("config.toml", b"a = '\xff'", r"config\.toml to be .*"),
        (
            "details.json",
            b'{"confusion": [[1, 2], [3]]}',
            r"confusion in .*details\.json to be a square .* \(got \[\[.*\)",
        ),
        ("details.json", b'{"confusion": [["a"]]}', r"confusion in .*details\.json to be a square .* \(got \[\[.*\)"),
        ("details.json", b'{"confusion": [[1, 2]]}', r"confusion in .*details\.json to be a square .* \(got \[\[.*\)"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    few(tmp_path, {"epoch": 1})
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"^Expected .*{message}; .*[.]$"):
        build_report(tmp_path)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.5, "share", "50.00\xa0%"),
        (-0.5, "share", "-50.00\xa0%"),
        (7200, "seconds", "2.00\xa0h"),
        (150.0, "seconds", "2.50\xa0min"),
        (0.0, "seconds", "0\xa0ms"),
        (12, "memory", "12\xa0MB"),
        (1_234_567, "plain", "1,234,567"),
        (0.001234, "plain", "0.00123"),
        (Spread(0.9, None), "share", "90.00\xa0%"),
        (Spread(None, None), "share", report.NOTHING),
        (True, "plain", report.NOTHING),
        ("12", "plain", report.NOTHING),
    ],
)
def test_numbers_have_units_for_people(value: Any, kind: str, text: str) -> None:
    assert report.number(value, kind) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batches", "x"), ("batches", [1]), ("degrees", [1]), ("per_class", {"a": 1}), ("layers", [["a"]]),
        ("classes", 5), ("scatter", [[1]]), ("scatter", [[1e308, -1e308]]), ("split", [1]), ("confusion", [[10**400]]),
    ],
)  # fmt: skip
def test_details_of_another_kind_are_one_sentence(tmp_path: Path, key: str, value: object) -> None:
    run = make_run(tmp_path / "run", epochs=1, classes=2)
    details = json.loads((run / "details.json").read_text())
    (run / "details.json").write_text(json.dumps(details | {key: value}))
    with pytest.raises(ValueError, match=rf"Expected '?{key}.* in .*details.json to be"):
        build_report(run)
