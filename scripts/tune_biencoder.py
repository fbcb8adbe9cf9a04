"""Choose a bi-encoder's settings on dev among eight, then train the best with three seeds and measure it on test.

uv run scripts/tune_biencoder.py --dataset nfcorpus
uv run scripts/tune_biencoder.py --dataset nfcorpus --only layer,layer-slow
"""

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import EngineSettings, Override, comma_separated, with_engine
from unimoe.core.console import run
from unimoe.studies.common.command import NumSeeds, Plan, StudyDir, changes, run_study


@with_engine
def tune_biencoder(
    config: Annotated[str | None, typer.Option(help="Of a training; by default biencoder/default.")] = None,
    collection: Annotated[str | None, typer.Option("--dataset", help="By default the config's collection.")] = None,
    only: Annotated[str | None, typer.Option(help="Settings, separated by commas; by default all.")] = None,
    seeds: NumSeeds = None,
    output_dir: StudyDir = None,
    override: Override = None,
    plan: Plan = False,
    *,
    where: EngineSettings,
) -> None:
    """Run the study studies/biencoder."""
    variants = ",".join(f"biencoder:{name}" for name in comma_separated(only) or ())
    given, file = changes({"config": config, "collection": collection}, override), Path("studies/biencoder")
    run_study(file, where, given, only=variants, seeds=seeds, output_dir=output_dir, plan=plan)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(tune_biencoder)
    run(app)
