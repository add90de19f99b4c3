"""Pages say what results say: numbers are written into them, and none is older than its result."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))
import quotes  # noqa: E402

PAGES = [page for page in quotes.pages() if "<!-- quote" in page.read_text(encoding="utf-8")]


def forget():
    for known in (quotes.text_of, quotes.rows_of, quotes.tables_of):
        known.cache_clear()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Results of two methods, and a page that quotes them."""
    forget()
    monkeypatch.setattr(quotes, "ROOT", tmp_path)
    monkeypatch.setattr(quotes, "RESULTS", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "evidence.json").write_text(json.dumps({"one": {"date": "today", "commit": "abc"}}))
    head = "data,setting,method,metric,mean\n"
    (tmp_path / "shrinkage.csv").write_text(head + "corn,few,plain,rmse,0.51249\n")
    page = tmp_path / "README.md"
    page.write_text("An error of <!-- quote shrinkage corn few plain -->.5<!-- end quote --> sd.\n")
    yield page
    forget()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_its_results_say(page):
    text = page.read_text(encoding="utf-8")
    for call, said in quotes.QUOTE.findall(text):
        assert said == quotes.quoted(call), f"{call}: run `python experiments/quotes.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_comments_do_not_begin_a_line_of_text(page):
    # Markdown would take the whole line for HTML
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^<!-- (end )?quote[^>]*-->[ \t]*[^\s<]", text, re.MULTILINE)
    assert (
        text.count("<!-- quote ")
        == text.count("<!-- end quote -->")
        == len(quotes.QUOTE.findall(text))
    )


def test_numbers_of_a_page_follow_the_results(place):
    assert quotes.main(check=True) == 1
    assert "-->.5<!--" in place.read_text()
    assert quotes.main(check=False) == 0
    assert "An error of <!-- quote shrinkage corn few plain -->0.512<!--" in place.read_text()
    assert quotes.main(check=True) == 0


def test_results_are_dated(place):
    assert quotes.quoted("measured one") == "today, commit abc"
    assert quotes.quoted("measured other") == "before dates were recorded"


def test_what_nobody_measured_cannot_be_quoted(place):
    with pytest.raises(LookupError, match="0 rows"):
        quotes.quoted("shrinkage corn many plain")
    with pytest.raises(LookupError, match="Nothing is called 'guess'"):
        quotes.quoted("guess 42")
