"""The files of a grid: the page says what the CSV says, with whatever is missing or odd in it."""

from __future__ import annotations

import csv
import json
import re

import pytest

from pointvit.training.grid import Arm, Plan, Report, results, run

COMMAND = ["pointvit", "transfer", "--config", "my config.yaml"]


@pytest.fixture
def report(plan, store, trainer) -> Report:
    run(plan, store, trainer)
    settings = {"scratch:full": {"model.trunk_lr_scale": 1.0}}
    pairs = [(("pretrained", "blocks=2"), ("pretrained", "full"))]
    return Report(results(plan, store), 0, COMMAND, "model: {a: <b>}", settings, pairs)


def read(folder) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_and_json(report, tmp_path):
    report.write(tmp_path / "new")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {
        "results.csv",
        "results.json",
        "low_data.png",
        "low_data.svg",
        "index.html",
    }
    rows = read(tmp_path / "new")
    data = json.loads((tmp_path / "new" / "results.json").read_text())
    assert len(rows) == len(data["cells"]) == 14
    for line, cell, result in zip(rows, data["cells"], report.results, strict=True):
        assert float(line["val_best"]) == cell["val_best"] == result.measured.val_best
        assert (line["test_oa"] == "") == (cell["test_oa"] is None) == (line["search"] == "True")
        assert cell["curve"] == [list(point) for point in result.measured.curve]
    assert data["command"] == COMMAND
    assert {(d["arm"], d["against"], d["shapes_per_class"]) for d in data["differences"]} == {
        ("pretrained:full", "scratch:full", "5"),
        ("pretrained:full", "scratch:full", "10"),
        ("pretrained:blocks=2", "scratch:full", "10"),
        ("pretrained:blocks=2", "pretrained:full", "10"),
    }
    means = [
        float(row["test_oa"]) for row in rows if (row["init"], row["shapes_per_class"]) == ("scratch", "5")
    ]
    assert data["summary"][1]["test_oa"] == pytest.approx(sum(means) / 2)


def test_the_page_in_a_browser_has_the_numbers_of_the_csv(report, tmp_path, visit):
    page = visit(report.write(tmp_path))
    rows = [row for row in read(tmp_path) if row["search"] == "False"]
    shown = page.get_by_role("table", name="Every training").locator("tbody tr").all()
    assert len(shown) == len(rows) == 10
    for line, row in zip(shown, rows, strict=True):
        cells = line.locator("th, td").all_inner_texts()
        assert cells[:4] == [
            f"{row['init']} × {row['mode']}",
            row["shapes_per_class"],
            row["seed"],
            f"{float(row['lr']):g}",
        ]
        percent = [
            f"{100 * float(row[name]):.2f}" for name in ("test_oa", "test_macc", "val_best", "val_last")
        ]
        assert [cells[i] for i in (4, 5, 6, 8)] == percent
        assert (cells[7], cells[9]) == (row["best_epoch"], row["epochs"])
    for line in page.get_by_role("table", name="Test accuracy").locator("tbody tr").all():
        name, size, seeds, spread = line.locator("th, td").all_inner_texts()[:4]
        scores = [
            100 * float(row["test_oa"])
            for row in rows
            if (f"{row['init']} × {row['mode']}", row["shapes_per_class"]) == (name, size)
        ]
        assert len(scores) == int(seeds) == 2
        mean, std = (float(number) for number in spread.split(" ± "))
        assert mean == pytest.approx(sum(scores) / 2, abs=0.051)
        assert std == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5, abs=0.051)
    first = page.get_by_role("table", name="Paired differences").locator("tbody tr").first
    # Both arms differ by 0.1 with either seed, so that the interval has no width.
    assert first.locator("th, td").all_inner_texts()[2:] == ["5", "2", "+10.0", "+10.0 to +10.0", "yes"]
    assert (
        page.locator(".lead").inner_text().startswith("Did the image weights help? Pretrained × full against")
    )
    search = page.get_by_role("table", name="Best validation OA").locator("tbody tr").first
    assert search.locator("th, td").all_inner_texts() == [
        "pretrained × full",
        "30.41",
        "30.50",
        "0.001; at the end of what was tried",
    ]
    assert page.get_by_role("img", name=re.compile("scratch × full with 10 a class 2")).count() == 1
    assert page.locator("#command").inner_text() == "pointvit transfer --config 'my config.yaml'"
    assert "a: <b>" in page.locator("main").inner_text()
    assert "model.trunk_lr_scale" in page.locator("main").inner_text()


def test_on_a_phone(report, tmp_path, visit):
    page = visit(report.write(tmp_path), 390, 844, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_end_of_an_arms_own_rates_is_told(store, trainer, tmp_path):
    arms = Arm("pretrained", "full", (5,), 5), Arm("scratch", "full", (5,), 5)
    plan = Plan(arms, 1, (1e-4, 1e-3), {"scratch:full": (1e-2, 3e-2)}, 5e-4)
    run(plan, store, trainer)
    text = Report(results(plan, store), 0, COMMAND, "", {}).write(tmp_path / "own").read_text()
    assert "0.001; at the end of what was tried" in text


def test_one_size_one_seed_and_what_is_missing(store, trainer, tmp_path):
    plan = Plan((Arm("pretrained", "full", (5,)), Arm("scratch", "full", (5,))), 1, (), {}, 1e-3)
    run(plan, store, trainer)
    done = results(plan, store)
    text = Report(done, 3, COMMAND, "", {}).write(tmp_path / "one").read_text()
    assert "not defined" in text
    assert "one seed cannot tell" in text
    assert "3 cells of this grid are not done yet." in text
    assert not re.search(r"\d ± ", text)
    page = Report([], 10, COMMAND, "", {}).write(tmp_path / "none")
    assert "There is nothing to say yet" in page.read_text()
    assert not (tmp_path / "none" / "low_data.png").exists()
