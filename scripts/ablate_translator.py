"""Switch each component of the translator's objective off and on: what it is worth, and how often it was active.

uv run scripts/ablate_translator.py
uv run scripts/ablate_translator.py --data train.npz --captions captions.txt --device cuda
"""

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import EngineSettings, Override, with_engine
from unimoe.core.console import run
from unimoe.studies.common.command import NumSeeds, Plan, StudyDir, changes, run_study


@with_engine
def ablate_translator(
    data: Annotated[str | None, typer.Option(help="flickr8k under UNIMOE_DATA, generated, or an NPZ file.")] = None,
    captions: Annotated[str | None, typer.Option(help="captions.txt: the image of each caption of the file.")] = None,
    dims: Annotated[tuple[int, int] | None, typer.Option(help="Dimensions of captions and images.")] = None,
    models: Annotated[str | None, typer.Option(help="Rows of the table, by commas; by default all.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every training.")] = None,
    seeds: NumSeeds = None,
    output_dir: StudyDir = None,
    override: Override = None,
    plan: Plan = False,
    *,
    where: EngineSettings,
) -> None:
    """Run the study studies/translator_ablation; ``unimoe study studies/translators`` compares whole models."""
    keys = {"data.source": data, "data.captions": captions, "data.dims": dims, "epochs": epochs}
    given, file = changes(keys, override), Path("studies/translator_ablation")
    run_study(file, where, given, only=models, seeds=seeds, output_dir=output_dir, plan=plan)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(ablate_translator)
    run(app)
