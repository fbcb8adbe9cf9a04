"""The comparison in Korean: Ko-StrategyQA with multilingual-e5-base, or without a network Belebele's Korean part.

uv run scripts/compare_korean.py --num_steps 1000 --device cuda
uv run scripts/compare_korean.py --offline
"""

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import EngineSettings, Override, with_engine
from unimoe.core.console import run
from unimoe.studies.common.command import NumSeeds, Plan, StudyDir, changes, run_study


@with_engine
def compare_korean(
    offline: Annotated[bool, typer.Option("--offline", help="UNIMOE_DATA's belebele-ko, the bundled encoder.")] = False,
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
    """Run the study studies/heads_korean, which downloads data and encoder, or studies/heads_korean_offline."""
    keys = {"num_steps": num_steps, "settings": settings, "gates.eggroll-beats-infonce.margin": margin}
    given, file = changes(keys, override), Path("studies/heads_korean_offline" if offline else "studies/heads_korean")
    run_study(file, where, given, only=methods, seeds=seeds, output_dir=output_dir, plan=plan)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(compare_korean)
    run(app)
