"""Compare ranking losses on a cross-encoder: ListMLE, position-aware ListMLE in its variants, ListNet, LambdaLoss.

uv run scripts/compare_losses.py --rates 1e-5,3e-5,1e-4
uv run scripts/compare_losses.py --config cross_encoder/losses_nfcorpus --losses plistmle_sum_identity,lambdaloss
"""

from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import EngineSettings, Override, with_engine
from unimoe.core.console import run, stderr
from unimoe.studies.common.command import NumSeeds, Plan, StudyDir, changes, run_study


@with_engine
def compare_losses(
    config: Annotated[str | None, typer.Option(help="Of a training; by default cross_encoder/losses.")] = None,
    losses: Annotated[str | None, typer.Option(help="Separated by commas; by default all.")] = None,
    seeds: NumSeeds = None,
    rates: Annotated[
        str | None,
        typer.Option(help="Learning rates: each loss gets its best on dev. By default one, and no gate is registered."),
    ] = None,
    output_dir: StudyDir = None,
    override: Override = None,
    plan: Plan = False,
    *,
    where: EngineSettings,
) -> None:
    """Run the study studies/losses, which tries three rates where ``unimoe study`` runs it."""
    # A rate that all losses share suits some of them better than others, so nothing is judged by it.
    tried = [f"grid.learning_rate=[{rates}]"] if rates else ["grid={}", "gates={}"]
    if not rates:
        stderr.print("note: no gate is registered, since all losses share one rate; give --rates", soft_wrap=True)
    given, file = changes({"config": config}, [*tried, *(override or ())]), Path("studies/losses")
    run_study(file, where, given, only=losses, seeds=seeds, output_dir=output_dir, plan=plan)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(compare_losses)
    run(app)
