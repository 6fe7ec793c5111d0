"""Screenshots of every page with the demo sessions, in light and dark: `make screens` writes them to .cache/screens.

`python tests/screens.py docs/pictures readme` takes those of README.md again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from page_rig import SIGHTS, served_demo, visiting

SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
THEMES = ("light", "dark")


def take_all(browser: Browser, address: str, folder: Path) -> None:
    """Take every view in all sizes and themes."""
    for size, (width, height) in SIZES.items():
        for theme in THEMES:
            options: dict[str, Any] = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
            for name in SIGHTS:
                with visiting(browser, address, **options) as visitor:
                    path = folder / f"{name.replace(' ', '-')}-{size}-{theme}.png"
                    visitor.see(name).screenshot(path=path)
                    print(path)


def take_for_the_readme(browser: Browser, address: str, folder: Path) -> None:
    """Take the session page for README.md."""
    for theme in THEMES:
        options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "color_scheme": theme}
        with visiting(browser, address, **options) as visitor:
            visitor.see("session").screenshot(path=folder / f"page-{theme}.png")


def main() -> int:
    """Write the screenshots to the given folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium")
    if program is None:
        print("needs chromium: apt-get install chromium", file=sys.stderr)
        return 1
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as root, served_demo(Path(root)) as address:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        take = take_for_the_readme if sys.argv[2:] == ["readme"] else take_all
        take(browser, address, folder)
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
