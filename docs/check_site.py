"""Check the site that was built: links, images, and every page in a browser.

    python docs/check_site.py FOLDER [--screens FOLDER]

Every link inside the site must lead to a file and to a place on it, every image must be there, and
nothing may be fetched from elsewhere. Where chromium is installed, every page is opened at the
widths of a desktop and of a phone: no errors on the console, no page wider than the screen.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

WIDTHS = {"desktop": (1300, 900), "phone": (390, 844)}
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync disable-dev-shm-usage"
)
WIDER = """
const screen = document.documentElement.clientWidth;
return document.documentElement.scrollWidth - screen;
"""


class Page(HTMLParser):
    """The places of a page that can be linked to, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.without_text: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("img", "script", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") != "canonical" and found.get("href"):
            self.loads.append(found["href"])
        if tag == "img" and found.get("alt") is None:  # an empty one is for decoration
            self.without_text.append(found.get("src", ""))


def pages_of(site: Path) -> list[Path]:
    """Return all pages, without the theme's own templates."""
    found = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    return sorted(found)


def faults(site: Path) -> list[str]:
    """Return what is wrong with links and images."""
    pages = {path.resolve(): Page(path) for path in pages_of(site)}
    found = []
    for path, page in pages.items():
        here = path.relative_to(site.resolve())
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https") and address in page.loads:
                found.append(f"{here}: fetched from elsewhere: {address}")
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                found.append(f"{here}: nothing at {address}")
            elif parts.fragment and there in pages and address in page.links:
                known = unquote(parts.fragment) in pages[there].places
                found += [] if known else [f"{here}: no such place: {address}"]
        found += [f"{here}: an image without text: {address}" for address in page.without_text]
    return found


def browse(site: Path, screens: Path | None) -> list[str] | None:
    """Open every page in a browser; None if there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        return None
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    found = []
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in FLAGS.split():
            options.add_argument(f"--{flag}")
        options.add_argument(f"--user-data-dir={profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            for kind, size in WIDTHS.items():
                # a window of chromium is never narrower than 500, an emulated one can be
                device = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
                browser.execute_cdp_cmd(
                    "Emulation.setDeviceMetricsOverride", {**device, "mobile": kind == "phone"}
                )
                for path in pages_of(site):
                    found += look(browser, path, site, kind, screens)
            found += search(browser, site, "harmonization")
        finally:
            browser.quit()
    return found


def look(browser, path: Path, site: Path, kind: str, screens: Path | None) -> list[str]:
    """Open one page, and keep a picture of it."""
    here = path.relative_to(site)
    browser.get(path.resolve().as_uri())
    wider = browser.execute_script(WIDER)
    found = [f"{here} ({kind}): {wider} pixels wider than the screen"] if wider > 1 else []
    said = [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    found += [f"{here} ({kind}): {entry['message']}" for entry in said]
    if screens is not None:
        name = re.sub(r"\W+", "-", str(here.with_suffix("")))
        browser.save_screenshot(str(screens / f"{name}-{kind}.png"))
    return found


def search(browser, site: Path, word: str) -> list[str]:
    """Search the site for a word, as a reader without a network does."""
    browser.get(f"{(site / 'search.html').resolve().as_uri()}?q={word}")
    for _ in range(50):
        if browser.execute_script("return document.querySelectorAll('#search-results li').length"):
            return []
        time.sleep(0.2)
    return [f"search.html: nothing found for {word}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--screens", type=Path, help="keep pictures of all pages here")
    given = parser.parse_args()
    if given.screens is not None:
        given.screens.mkdir(parents=True, exist_ok=True)
    wrong = faults(given.site)
    seen = browse(given.site, given.screens)
    if seen is None:
        print("no chromium here: pages were not opened in a browser")
    for line in [*wrong, *(seen or [])]:
        print(line)
    n = len(pages_of(given.site))
    print(f"{n} pages, {len(wrong)} faults of links and images, {len(seen or [])} in the browser")
    sys.exit(bool(wrong or seen))


if __name__ == "__main__":
    main()
