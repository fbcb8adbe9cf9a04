"""Make the pictures of README and manual, and keep the numbers that they show for a test.

uv run --group readers python docs/pictures.py outputs/bundled

The folder is that of a finished main job; the figure of critical differences is of the runs that ship with the package.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import sync_playwright

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.report import SUBFOLDER
from unimoe.results.folder import Results, load_all_results

FIGURES = Path(__file__).parent / "figures"
OF_THE_JOB = {"tir-forest": "intervals", "differences-reranking": "differences"}
"""Names of the main job's figures, and what they are called here."""


def main(output_dir: Path) -> None:
    """Write the first screen of the report and some figures as pictures, and what they show as JSON."""
    picture_of(output_dir / SUBFOLDER / "report.html")
    for name, here in OF_THE_JOB.items():
        shutil.copyfile(output_dir / SUBFOLDER / "figures" / f"{name}.png", FIGURES / f"{here}.png")
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "unimoe", "compare", "--example", "--output-dir", f"{folder}/example"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        name = "critical-difference.png"
        shutil.copyfile(Path(folder) / "example" / SUBFOLDER / "figures" / name, FIGURES / name)
    numbers = numbers_of(load_all_results(output_dir))
    (FIGURES / "report.json").write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def picture_of(report: Path) -> None:
    """Photograph the first screen of a report on a desk."""
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 700})
        page.goto(report.resolve().as_uri())
        page.screenshot(path=FIGURES / "report.png")
        browser.close()


def numbers_of(results: Results) -> dict[str, Any]:
    """Return TIR of each gate in percent, nDCG@10 x 100 by seed, and the rows of the table of reranking."""
    gates, scores = dict[str, Any](), dict[str, list[float]]()
    for judgment in Analysis(results).judgments:
        found = judgment.found.estimate
        shown = [round(100 * end, 2) for end in (found.value, *(found.interval or ()))]
        gates[judgment.name] = {"label": judgment.label, "tir_percent": shown}
    for key in results.dataset_keys:
        for result in results.measured(key):
            scores.setdefault(f"{key} {result.config_name}", []).append(round(100 * result.aggregate["ndcg@10"], 2))
    tables = (results.output_dir / SUBFOLDER / "tables" / "comparison.md").read_text("utf-8").split("\n\n")
    first = next(table for table in tables if table.startswith("|"))
    return {"gates": gates, "scores": scores, "table": first.strip().splitlines()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
