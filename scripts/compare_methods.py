"""Compare evolution strategies with gradients on a projection head: settings chosen on dev, five seeds, one test.

uv run scripts/compare_methods.py --num_steps 150
uv run scripts/compare_methods.py --task NanoMSMARCO --num_steps 1000 --device cuda
"""

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import EngineSettings, Override, with_engine
from unimoe.core.console import run
from unimoe.studies.common.command import NumSeeds, Plan, StudyDir, changes, run_study


@with_engine
def compare_methods(
    task: Annotated[str | None, typer.Option(help="By default SciFact's folder, else apidocs.")] = None,
    num_steps: Annotated[int | None, typer.Option("--num_steps", "--num-steps", help="Steps, or generations.")] = None,
    methods: Annotated[str | None, typer.Option(help="Separated by commas; by default all.")] = None,
    seeds: NumSeeds = None,
    settings: Annotated[int | None, typer.Option(help="Settings of each method tried on dev.")] = None,
    margin: Annotated[float | None, typer.Option(help="Evolution must beat InfoNCE by this: .01 is a point.")] = None,
    output_dir: StudyDir = None,
    override: Override = None,
    plan: Plan = False,
    *,
    where: EngineSettings,
) -> None:
    """Run the study studies/heads_compare; ``unimoe study`` runs it too, and studies/heads_grid and heads_pareto."""
    keys = {"task": task, "num_steps": num_steps, "settings": settings, "gates.eggroll-beats-infonce.margin": margin}
    given, file = changes(keys, override), Path("studies/heads_compare")
    run_study(file, where, given, only=methods, seeds=seeds, output_dir=output_dir, plan=plan)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(compare_methods)
    run(app)
