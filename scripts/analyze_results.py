"""Compare the arms of an experiment: verdict, tables, figures, report.

uv run scripts/analyze_results.py --output-dir outputs
"""

from unimoe.cli.analyze import app
from unimoe.core.console import run

if __name__ == "__main__":
    run(app)
