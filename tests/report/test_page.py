"""Pages of results: text is never markup, ids are unique, and a browser and a keyboard can use them."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from pointvit import plots
from pointvit.report import Page, code, figure, paragraph, table

MARKUP = "</section><img src=x onerror=alert(1)>"
COMMAND = ["pointvit", "transfer", "--config", "my <file>.yaml"]


FOCUSED = """() => {
  const element = document.activeElement;
  return element === document.body ? null : [element.tagName, getComputedStyle(element).outlineStyle];
}"""


def drawn(label: str = "accuracy (%)"):
    """A figure with everything that Matplotlib gives an id: markers, clip paths, an image."""
    chart = plots.new_figure(5, 3)
    left, right = chart.subplots(1, 2)
    left.plot([1, 2, 3], [3, 1, 2], marker="o", label=label)
    left.legend()
    right.imshow([[0, 1], [2, 3]])
    return chart


@pytest.fixture
def page() -> Page:
    page = Page(f"Title {MARKUP}", "It helped & how.", COMMAND)
    rows = [["a", 0.123456, "81.2 ± 0.4", None], [MARKUP, 12345, "−3.0", "text"]]
    page.section("Numbers", paragraph(MARKUP), table(["arm", "share", "accuracy", "note"], rows, "A table"))
    same = figure(drawn(MARKUP), f"two plots {MARKUP}", "A caption")
    page.section("Pictures & more", same, same, figure(drawn(), "others", "Another"), code("a: <b>"))
    return page


class Tags(HTMLParser):
    """Every element's tag and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_ids_are_unique_and_everything_named_is_there(page):
    tags = Tags(page.html()).found
    ids = Counter(attrs["id"] for _, attrs in tags if "id" in attrs)
    assert max(ids.values()) == 1
    named = [
        value[1:] for _, attrs in tags for key, value in attrs.items() if key == "href" and value[0] == "#"
    ]
    named += [attrs["aria-labelledby"] for _, attrs in tags if "aria-labelledby" in attrs]
    named += re.findall(r"url\(#(.*?)\)", page.html())
    assert len(set(named)) > 15
    assert set(named) <= set(ids)


def test_what_is_given_is_text(page):
    text = page.html()
    tags = [tag for tag, _ in Tags(text).found]
    assert "img" not in tags
    assert "script" not in tags
    assert "metadata" not in tags
    assert tags.count("section") == 2
    assert "default-src 'none'" in text
    assert not re.search(r"https?://", text)
    assert "pointvit transfer --config &#x27;my &lt;file&gt;.yaml&#x27;" in text


def test_names_in_the_text_are_not_replaced():
    page = Page("{{css}} {{nothing}}", "lead", "command")
    assert "<h1>{{css}} {{nothing}}</h1>" in page.html()


def test_tables_name_their_rows_and_align_numbers(page):
    text = page.html()
    assert '<th scope="col">arm</th><th scope="col" class="number">share</th>' in text
    assert '<th scope="row">a</th><td class="number">0.1235</td><td class="number">81.2 ± 0.4</td>' in text
    assert '<td class="number">12,345</td><td class="number">−3.0</td><td>text</td>' in text
    assert re.search(r'<caption id="s1-2">A table</caption>', text)
    assert '<th scope="col">a</th>' in table(["a"], [], "no rows").html("name")


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"a row of 1 cells in a table of 2 columns: \['x'\]"):
        table(["a", "b"], [["x"]], "caption")


def test_the_same_page_twice_and_nothing_half_written(page, tmp_path):
    path = page.save(tmp_path / "new" / "index.html")
    first = path.read_bytes()
    assert page.save(path).read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]


def test_in_a_browser(page, tmp_path, visit):
    shown = visit(page.save(tmp_path / "index.html"))
    assert shown.title() == shown.locator("h1").inner_text() == f"Title {MARKUP}"
    assert shown.locator("#command").inner_text() == "pointvit transfer --config 'my <file>.yaml'"
    assert "pointvit" in shown.locator("#versions").inner_text()
    for role, count in {"banner": 1, "navigation": 1, "main": 1, "contentinfo": 1, "table": 1}.items():
        assert shown.get_by_role(role).count() == count
    pictures = shown.get_by_role("img")
    assert pictures.count() == 3
    assert shown.get_by_role("img", name=f"two plots {MARKUP}").count() == 2
    box = pictures.first.bounding_box()
    assert box["width"] == pytest.approx(5 / 3 * box["height"], rel=0.01)
    assert shown.get_by_text("accuracy (%)").first.is_visible()
    reached = []
    for _ in range(20):
        shown.keyboard.press("Tab")
        place = shown.evaluate(FOCUSED)
        if place is None:
            break
        reached.append(place)
    assert [tag for tag, _ in reached] == ["A", "A", "A", "DIV", "DIV", "DIV", "DIV", "PRE", "PRE"]
    assert all(outline != "none" for _, outline in reached)
    shown.get_by_role("link", name="Pictures & more").click()
    assert shown.evaluate("location.hash") == "#s2"


def test_on_a_phone_and_on_paper(page, tmp_path, visit):
    path = page.save(tmp_path / "index.html")
    phone = visit(path, 390, 844, is_mobile=True, has_touch=True)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    for link in phone.get_by_role("link").all():
        assert link.bounding_box()["height"] >= 40, "large enough for a finger"
    phone.emulate_media(media="print")
    assert not phone.get_by_role("navigation").is_visible()
    assert phone.locator("#command").is_visible()
