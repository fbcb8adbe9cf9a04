"""Compare ranking losses on a cross-encoder: ListMLE, position-aware ListMLE in its variants, ListNet, LambdaLoss.

uv run scripts/compare_losses.py
uv run scripts/compare_losses.py --config cross_encoder/losses_nfcorpus --losses plistmle_sum_identity,lambdaloss
"""

import typer

from unimoe.core.console import run
from unimoe.studies.cross_encoder.command import compare_losses

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(compare_losses)
    run(app)
