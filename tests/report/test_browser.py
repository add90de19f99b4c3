"""The report in a real browser: search, sorting and choosing, looks, and hostile names."""

import io
import shutil

import numpy as np
import pandas as pd
import pytest
from stories import HOSTILE, report, table

from condokit import BatchAdapter
from condokit.report import render, save

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="chromium and chromedriver are absent: apt-get install chromium chromium-driver",
)
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync disable-dev-shm-usage window-size=1100,900"
)
CONTRAST = """
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const back = (node) => {
  for (let n = node; n; n = n.parentElement) {
    const colour = parts(getComputedStyle(n).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")]
  .filter((n) => n.checkVisibility() && !n.disabled && !["SCRIPT", "STYLE"].includes(n.tagName))
  .filter((n) => [...n.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
  .map((n) => {
    const style = getComputedStyle(n);
    const ink = parts(n.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [a, b] = [luminance(ink), luminance(back(n))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), n.outerHTML.slice(0, 80)];
  })
  .filter(([ratio]) => ratio < 4.5);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return addresses of pages: many features, hostile names, a matrix, and long names."""
    folder = tmp_path_factory.mktemp("pages")
    many = [f"gene_{j:03d}" for j in range(120)]
    records = {
        "many": report(table(120, many, n=20), command="condokit report genes.csv"),
        "hostile": report(table(len(HOSTILE), HOSTILE)),
        "matrix": report(table(3), "affine"),
        "long": report(table(6, [f"rh_rostralanteriorcingulate_thickness_v{j}" for j in range(6)])),
    }
    addresses = {}
    for name, record in records.items():
        path = folder / f"{name}.html"
        path.write_text(render(record), encoding="utf-8")
        addresses[name] = path.as_uri()
    frame = table(3, n=40).assign(batch=np.resize(["A", "B", "site_of_a_very_long_name"], 120))
    frame = frame.astype({"sick": str})
    frame.loc[frame.index[:6], ["batch", "sick"]] = ["lost", "unknown"]
    roles = {"batch": "batch", "confounders": ["sick"]}
    settings = {"reference": "A", "unreachable": "keep"}
    with pytest.warns(UserWarning, match="No path"):
        adapter = BatchAdapter(**settings).fit(frame, features=["x*"], **roles)
    save(folder / "study.html", adapter, frame, **roles)
    addresses["study"] = (folder / "study.html").as_uri()
    return addresses


@pytest.fixture(autouse=True)
def silent_console(request):
    """Fail on anything that the console says."""
    yield
    driver = request.getfixturevalue("browser")
    assert driver.get_log("browser") == []


def opened(browser, address, *, dark=False, width=1100):
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    still = {
        "name": "prefers-reduced-motion",
        "value": "reduce",
    }  # clicks do not wait for scrolling
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)
    return lambda css: browser.find_elements("css selector", css)


def first_column(find):
    return [cell.text for cell in find("#features tbody th")]


def keys(name):
    from selenium.webdriver.common.keys import Keys

    return getattr(Keys, name)


def test_the_table_has_pages_search_and_sorting(browser, pages):
    find = opened(browser, pages["many"])
    assert len(first_column(find)) == 20
    assert find("#shown")[0].text == "1 to 20 of 120"
    find("#next")[0].click()
    assert find("#shown")[0].text == "21 to 40 of 120"
    find("#find")[0].send_keys("GENE_11")
    assert sorted(first_column(find)) == [f"gene_11{k}" for k in range(10)]
    find("#features thead button")[0].click()
    assert first_column(find) == [f"gene_11{k}" for k in range(10)]
    assert find("#features thead th")[0].get_attribute("aria-sort") == "ascending"
    find("#find")[0].send_keys("nothing")
    assert find("#shown")[0].text == "none"


def test_sorting_works_by_keyboard(browser, pages):
    find = opened(browser, pages["many"])
    error = find("#features thead button")[2]
    error.send_keys(keys("ENTER"))
    assert find("#features thead th")[2].get_attribute("aria-sort") == "descending"
    values = [float(c.text.split()[0]) for c in find("#features tbody td:nth-child(3)")]
    assert values == sorted(values, reverse=True)
    error.send_keys(keys("SPACE"))
    assert find("#features thead th")[2].get_attribute("aria-sort") == "ascending"
    assert len(find("#dots circle")) == 40


def test_a_feature_is_chosen_by_mouse(browser, pages):
    find = opened(browser, pages["many"])
    chosen = find("#list li")[3]
    chosen.click()
    assert find("#detail h3")[0].text == chosen.text
    assert len(find("#detail svg")) == 3  # all, and two strata
    assert len(find("#detail .curve.after")) == 3
    name = find("#features tbody button.name")[5]
    text = name.text
    name.click()
    assert find("#detail h3")[0].text == text


def test_a_feature_is_chosen_by_keyboard(browser, pages):
    find = opened(browser, pages["many"])
    find("#seek")[0].send_keys("gene_04", keys("ENTER"))
    assert browser.switch_to.active_element.get_attribute("id") == "list"
    here = browser.switch_to.active_element
    here.send_keys(keys("END"))
    last = find("#list li")[-1]
    assert last.get_attribute("aria-selected") == "true"
    assert find("#detail h3")[0].text == last.text
    here.send_keys(keys("ARROW_UP"))
    assert find("#detail h3")[0].text == find("#list li")[-2].text
    assert here.get_attribute("aria-activedescendant") == find("#list li")[-2].get_attribute("id")


def test_features_without_pictures_say_so(browser, pages):
    find = opened(browser, pages["many"])
    find("#list")[0].send_keys(keys("END"))
    assert "100 most shifted" in find("#detail")[0].text


def test_hostile_names_are_text(browser, pages):
    find = opened(browser, pages["hostile"])
    title = browser.title
    for item in find("#list li"):
        item.click()
        assert find("#detail h3")[0].text.strip() == item.text.strip()
        assert find("#detail svg")
    assert browser.title == title
    assert not find("img")
    assert HOSTILE[0] in [item.text for item in find("#list li")]


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast_and_colours_can_be_switched(browser, pages, dark):
    find = opened(browser, pages["many"], dark=dark)
    assert browser.execute_script(CONTRAST) == []
    ground = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(ground)
    find("#theme")[0].click()
    after = browser.execute_script(ground)
    assert (np.sum(_rgb(before)) < np.sum(_rgb(after))) == dark
    assert browser.execute_script(CONTRAST) == []


def _rgb(colour):
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]


@pytest.mark.parametrize("name", ["many", "hostile", "matrix"])
@pytest.mark.parametrize("width", [360, 760])
def test_narrow_pages_do_not_scroll_sideways(browser, pages, name, width):
    opened(browser, pages[name], width=width)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width


def test_everything_is_named_for_screen_readers(browser, pages):
    find = opened(browser, pages["many"])
    nameless = browser.execute_script(
        """return [...document.querySelectorAll("svg, button, input, section, [role=region]")]
        .filter((n) => n.checkVisibility() && !n.ariaHidden)
        .filter((n) => !(n.ariaLabel || n.getAttribute("aria-labelledby") || n.labels?.length
          || n.querySelector("title") || n.textContent.trim()))
        .map((n) => n.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert [len(find(mark)) for mark in ("header", "nav", "main", "footer", "h1")] == [1] * 5
    assert find("html")[0].get_attribute("lang") == "en"


def test_the_page_prints_light(browser, pages):
    opened(browser, pages["many"], dark=True)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert _rgb(ground) == [255, 255, 255]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_scripts_the_summary_is_there(browser, pages):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        find = opened(browser, pages["many"])
        assert find(".verdict .badge")[0].text
        assert len(first_column(find)) == 20
        assert not find("#theme")[0].is_displayed()
        assert not find("#explore")[0].is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_command_can_be_copied(browser, pages):
    find = opened(browser, pages["many"])
    buttons = find("[data-copies]")
    assert [b.get_attribute("data-copies") for b in buttons] == ["paragraph", "citation", "command"]
    buttons[2].click()
    browser.implicitly_wait(2)
    assert find("#copied:not(:empty)")[0].text == "Copied"
    browser.implicitly_wait(0)


def test_all_features_are_printed(browser, pages):
    find = opened(browser, pages["many"])
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert len(first_column(find)) == 120
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert len(first_column(find)) == 20


def test_the_table_can_be_saved(browser, pages):
    find = opened(browser, pages["hostile"])
    browser.execute_script(
        """URL.createObjectURL = (blob) => { window.saved = blob; return "#"; };
        HTMLAnchorElement.prototype.click = () => {};"""
    )
    find("#save")[0].click()
    text = browser.execute_async_script("saved.text().then(arguments[0])")
    frame = pd.read_csv(io.StringIO(text))
    assert sorted(frame["feature"]) == sorted(HOSTILE)
    assert frame[["change_low", "change", "change_high"]].notna().all(axis=None)


def test_the_first_screen_tells_of_trust_and_change(browser, pages):
    find = opened(browser, pages["many"])
    for css in (".verdict", "#h-trust", "#h-changed", ".changes tr:last-child"):
        assert find(css)[0].rect["y"] + find(css)[0].rect["height"] < 800
    assert len(find(".changes tr")) == 5


@pytest.mark.parametrize("name", ["many", "long", "hostile", "matrix"])
def test_a_phone_shows_tables_whole(browser, pages, name):
    opened(browser, pages[name], width=390)
    cut = """return [...document.querySelectorAll(".scroll, .changes, #dots, .stack td")]
      .filter((n) => n.scrollWidth > n.clientWidth).map((n) => n.outerHTML.slice(0, 80))"""
    assert browser.execute_script(cut) == []


@pytest.mark.parametrize("width", [390, 1100])
def test_names_are_broken_between_their_parts_only(browser, pages, width):
    opened(browser, pages["long"], width=width)
    broken = browser.execute_script(
        """return [...document.querySelectorAll("#features bdi, .bars bdi, .changes bdi")]
        .flatMap((n) => [...n.childNodes].filter((c) => c.nodeType === 3))
        .filter((text) => {
          const range = document.createRange();
          range.selectNodeContents(text);
          return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1;
        }).map((text) => text.data)"""
    )
    assert broken == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1100])
def test_a_study_can_be_read_everywhere(browser, pages, dark, width):
    find = opened(browser, pages["study"], dark=dark, width=width)
    find(".study a")[0].click()  # a batch opens its details
    assert [one.get_attribute("open") for one in find("details.batch")] == ["true", None]
    browser.execute_script(
        "for (const one of document.querySelectorAll('details')) one.open = true"
    )
    assert browser.execute_script(CONTRAST) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    if width < 600:  # tables are blocks there
        wide = "return [...document.querySelectorAll('table.stack, table.bars')]"
        assert browser.execute_script(f"{wide}.every((t) => t.scrollWidth <= innerWidth)")
    ends = "return [...document.querySelectorAll('.graph text')].map((t) => t.getBBox())"
    boxes = browser.execute_script(f"{ends}.map((b) => [b.x, b.y, b.x + b.width, b.y + b.height])")
    for k, a in enumerate(boxes):  # no text of the picture covers another
        for b in boxes[:k]:
            assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]
