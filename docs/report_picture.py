"""Make the picture of the README from a finished main job, and keep the numbers that it shows for a test.

uv run python docs/report_picture.py outputs/bundled
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.report import SUBFOLDER
from unimoe.results.folder import load_all_results

PICTURE = Path(__file__).parent / "figures" / "report.png"
NUMBERS = PICTURE.with_suffix(".json")


def main(output_dir: Path) -> None:
    """Write the first screen of the report as a picture, and what each gate found as JSON."""
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1100, "height": 720})
        page.goto((output_dir / SUBFOLDER / "report.html").resolve().as_uri())
        page.screenshot(path=PICTURE)
        browser.close()
    judgments = Analysis(load_all_results(output_dir)).judgments
    numbers = {
        judgment.name: {
            "label": judgment.label,
            "tir_percent": [round(100 * x, 2) for x in (found.value, found.low, found.high)],
        }
        for judgment in judgments
        for found in [judgment.found.estimate]
    }
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
