"""The command line. Each command imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unimoe import console
from unimoe.analysis.commands import analyze
from unimoe.analysis.runs.command import SeveralValues, compare
from unimoe.comparison.command import compare_heads, train_head
from unimoe.comparison.cross_encoder_command import train_cross_encoder
from unimoe.comparison.translator_command import compare_translators, train_translator
from unimoe.config import Experiment
from unimoe.config.files import load_config, load_experiment
from unimoe.console import Steps, stderr, stdout
from unimoe.errors import UsageError, did_you_mean
from unimoe.generator.command import label_pairs, train_biencoder

if TYPE_CHECKING:
    import torch

    from unimoe.models.bench import ModelBench
    from unimoe.results import Task

DEFAULT_EXPERIMENT = Path("experiments/bundled")
DEFAULT_RETRIEVAL = Path("retrieval/default")

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

Config = Annotated[Path, typer.Option(help="An experiment's YAML file, or the name of a shipped one.")]
Override = Annotated[list[str] | None, typer.Option("--set", help="Override a config key: training.steps=50.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps; by default the best there is.")]
OutputDir = Annotated[Path | None, typer.Option(help="The experiment's folder; by default the config's output_dir.")]


def run_experiment(
    config: Config = DEFAULT_EXPERIMENT,
    override: Override = None,
    output_dir: OutputDir = None,
    device: Device = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Few steps, one seed, unfit for decisions.")] = False,
) -> None:
    """Run an experiment: train, evaluate and judge every arm and seed.

    Without arguments: the bundled model and collection, offline, in minutes. What is done already is skipped, so a
    killed run goes on when it is started again.
    """
    from unimoe.experiment import ExperimentRun, smoke_version

    _refuse_torchrun("an experiment")
    experiment = load_experiment(config, override or [])
    if smoke:
        experiment = smoke_version(experiment).model_copy(update={"output_dir": f"{experiment.output_dir}-smoke"})
    experiment = _placed(experiment, output_dir)
    _quiet_libraries()
    run = ExperimentRun(experiment, _device(device), _given(config, override, smoke=smoke))
    _announce(experiment, run.bench, smoke)
    run.train_and_evaluate()
    stderr.print()
    analyze(output_dir=Path(experiment.output_dir))
    stdout.print(f"Next:   {_next_command(experiment)}", soft_wrap=True)


def train(
    arm: Annotated[str, typer.Option(help="Which of the config's arms.")],
    config: Config = DEFAULT_EXPERIMENT,
    seed: Annotated[int, typer.Option(min=0, help="Initialises the adapters and orders the batches.")] = 0,
    override: Override = None,
    output_dir: OutputDir = None,
    device: Device = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from a saved state, or keep a finished checkpoint.")
    ] = False,
) -> None:
    """Train one arm with one seed; prints the checkpoint's folder.

    Under torchrun or accelerate launch the processes share each batch. Where training.evaluate_every is set, the best
    checkpoint on dev stands beside the last, in checkpoint-best.
    """
    experiment = _placed(load_experiment(config, override or []), output_dir)
    experiment.arm(arm)
    _quiet_libraries()
    from unimoe.evaluation.dev_eval import DevEvaluation
    from unimoe.models.bench import ModelBench
    from unimoe.models.device import choose_dtype
    from unimoe.processes import joined_processes
    from unimoe.training.gradient.examples import load_training_data
    from unimoe.training.gradient.trainer import StepReport, train_arm

    with joined_processes() as processes:
        if not processes.leads:
            console.be_quiet()
        target = _device(device)
        dtype = choose_dtype(target, experiment.model.dtype)
        bench = ModelBench(experiment, target, processes.leaders_dtype(dtype))
        with Steps(1).step(f"train {arm}, seed {seed}", experiment.training.steps) as step:

            def on_step(report: StepReport) -> None:
                step.advance(1)
                step.outcome = f"loss {report.loss:.3f}"

            data, base = load_training_data(experiment), bench.fresh_base()
            folder = train_arm(
                experiment, arm, seed, base=base, data=data, trunk=bench.trunk, resume=resume, on_step=on_step,
                score_on_dev=DevEvaluation(experiment, arm), processes=processes,
            )  # fmt: skip
    stdout.print(str(folder), soft_wrap=True)


def evaluate(
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint folder; its arm, base model and seed are used.")
    ] = None,
    zero_shot: Annotated[bool, typer.Option("--zero-shot", help="The config's base model, untrained.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="Overrides the checkpoint's evaluation settings; required with --zero-shot.")
    ] = None,
    override: Override = None,
    eval_tier: Annotated[
        str,
        typer.Option(
            help="bundled (offline), fast (SciFact, NFCorpus, FiQA2018), nano (NanoBEIR) or full (BEIR, MTEB)."
        ),
    ] = "bundled",
    datasets: Annotated[
        str | None, typer.Option(help="Collections in place of the tier: scifact,cqadupstack/android,path:DIR@dev.")
    ] = None,
    mteb: Annotated[
        str | None, typer.Option(help="Tasks or benchmarks of MTEB in place of the tier: STS12,SciFact; MTEB(eng, v2).")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only reranking, or only embedding.")] = None,
    max_queries: Annotated[
        int | None, typer.Option(min=1, help="Score at most this many queries of each dataset; results say so.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="The experiment's folder; by default the one the checkpoint stands in.")
    ] = None,
    device: Device = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print pairs, tokens, disk, time and cost; run only a short probe.")
    ] = False,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Of this machine, for the cost that --plan prints.")
    ] = None,
) -> None:
    """Evaluate a checkpoint on a tier: reranking always, embedding for arms that embed.

    Collections are looked for under the folder UNIMOE_DATA, then downloaded. One that can be had neither way is named,
    the others still run, and the exit code is 4. Results that are already there and up to date are kept; a killed
    evaluation goes on where it was. Under torchrun the processes share the reranking.
    """
    from unimoe.evaluation.commands import EvaluationRequest, plan_evaluation, run_evaluation
    from unimoe.evaluation.mteb_names import split_names
    from unimoe.processes import joined_processes

    if (checkpoint is None) is not zero_shot:
        raise UsageError("give either --checkpoint FOLDER or --zero-shot")
    if zero_shot and config is None:
        raise UsageError("--zero-shot needs --config, which names the base model")
    if task not in (None, "reranking", "embedding"):
        hint = did_you_mean(task, ("reranking", "embedding"))
        raise UsageError(f"--task {task}: unknown{hint}; use reranking or embedding")
    if price_per_hour is not None and not plan:
        raise UsageError("--price-per-hour belongs to --plan; give both, or neither")
    _quiet_libraries()
    request = EvaluationRequest(
        checkpoint=checkpoint,
        config=load_experiment(config, override or []) if config else None,
        overrides=tuple(override or ()),
        tier=eval_tier,
        datasets=tuple(split_names(datasets or "")),
        mteb=tuple(split_names(mteb or "")),
        task=cast("Task | None", task),
        max_queries=max_queries,
        output_dir=output_dir,
        given=_given(
            config, override, eval_tier=eval_tier, datasets=datasets, mteb=mteb, task=task, max_queries=max_queries
        ),
    )
    if plan:
        _refuse_torchrun("a plan")
        plan_evaluation(request, _device(device), price_per_hour)
        return
    with joined_processes() as processes:
        if not processes.leads:
            console.be_quiet()
        run_evaluation(request, _device(device), processes)


def retrieve(
    datasets: Annotated[str, typer.Option(help="Collections: scifact,cqadupstack/android,path:DIR@dev.")],
    encoder: Annotated[
        str | None, typer.Option(help="A hub id, a folder, or bundled:NAME; by default the config's encoder.base.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint folder, whose arm embeds in place of an encoder.")
    ] = None,
    config: Annotated[
        Path, typer.Option(help="A YAML file about dense retrieval, or the name of a shipped one.")
    ] = DEFAULT_RETRIEVAL,
    override: Override = None,
    output_dir: OutputDir = None,
    device: Device = None,
    name: Annotated[
        str | None, typer.Option(help="What to call the arm; by default the encoder's name, or the checkpoint's arm.")
    ] = None,
    before: Annotated[
        str, typer.Option(help="The arm to compare with: one just measured, or one with results in the folder.")
    ] = "bm25",
    max_queries: Annotated[
        int | None, typer.Option(min=1, help="Score at most this many queries of each dataset; results say so.")
    ] = None,
) -> None:
    """Search collections by embeddings, by BM25, and by the fusion of both; prints what changed against --before.

    Collections are looked for under the folder UNIMOE_DATA, then downloaded. One that can be had neither way is named,
    the others are still searched, and the exit code is 4. Vectors are kept in the folder vectors/ of the output folder,
    which may be deleted at any time; a killed run goes on where it was. Results that are up to date are kept.
    """
    from unimoe.analysis.before_after import print_before_after, refuse_unknown_arm
    from unimoe.config.dense import DenseExperiment
    from unimoe.evaluation.mteb_names import split_names
    from unimoe.evaluation.retrieve_command import RetrievalRequest, run_retrieval
    from unimoe.evaluation.retrievers import BM25, arm_names
    from unimoe.evaluation.suite import refuse_silence

    if encoder is not None and checkpoint is not None:
        raise UsageError("give --encoder or --checkpoint, not both")
    _refuse_torchrun("a retrieval")
    experiment = load_config(DenseExperiment, config, override or [])
    if encoder is not None and encoder != experiment.encoder.base:
        changed = experiment.encoder.model_copy(update={"base": encoder, "revision": None})
        experiment = experiment.model_copy(update={"encoder": changed})
    if output_dir is not None:
        experiment = experiment.model_copy(update={"output_dir": str(output_dir)})
    folder = Path(experiment.output_dir)
    names = arm_names(experiment, checkpoint, name)
    refuse_unknown_arm(folder, before, [BM25, *names])
    _quiet_libraries()
    request = RetrievalRequest(
        config=experiment,
        checkpoint=checkpoint,
        names=names,
        datasets=tuple(split_names(datasets)),
        max_queries=max_queries,
        given=_given(
            config, override, datasets=datasets, encoder=encoder, checkpoint=checkpoint, name=name,
            max_queries=max_queries,
        ),
    )  # fmt: skip
    report = run_retrieval(request, _device(device))
    print_before_after(folder, before, report.arms, report.keys)
    refuse_silence(report.missing)


def evaluate_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Lines of qid Q0 docid rank score tag; may be .gz.")],
    qrels: Annotated[Path, typer.Argument(metavar="QRELS", help="Judgments in TREC or BEIR layout; may be .gz.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="ndcg@K, mrr, mrr@K, map, recall@K, recall_cap@K, p@K, or any measure of ir_measures such as "
            "RBP(rel=2), ERR@20 or Judged@10; may be given several times. By default ndcg@10, mrr@10, map and "
            "recall@100."
        ),
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Score only the first so many documents of each query.")] = None,
    relevance_level: Annotated[
        int | None,
        typer.Option(
            help="The lowest grade that counts as relevant in map, mrr, recall and other binary measures; TREC DL "
            "counts from 2. By default what QRELS.json or the collection's collection.json states, else 1."
        ),
    ] = None,
    per_query: Annotated[bool, typer.Option("--per-query", help="Also print a line per metric and query.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the scores of every query, in place of lines.")
    ] = False,
) -> None:
    """Score a run file against qrels, as trec_eval -c does.

    Judged queries that the run lacks count 0, queries without judgments are left out; both are named on stderr.
    Documents rank by score, equal scores by document id, descending; the ranks in the file are not used.
    """
    from unimoe.metrics import DEFAULT_METRICS
    from unimoe.run_scores import print_scores, score_run_file

    scores = score_run_file(run, qrels, metric or DEFAULT_METRICS, depth, relevance_level)
    print_scores(scores, per_query=per_query, as_json=as_json)


def doctor(config: Config = DEFAULT_EXPERIMENT, device: Device = None) -> None:
    """Say what this machine has: device, speed, caches, disk, collections, and how long the main job will take."""
    from unimoe.doctor import examine

    for name, finding in examine(load_experiment(config), _device(device)):
        stdout.print(f"{name:<14}{finding}", soft_wrap=True)


def main() -> None:
    """The ``unimoe`` command."""
    console.run(app)


app.command("demo")(run_experiment)
app.command("train")(train)
app.command("evaluate")(evaluate)
app.command("retrieve")(retrieve)
app.command("evaluate-run")(evaluate_run)
app.command("analyze")(analyze)
app.command("compare", cls=SeveralValues)(compare)
app.command("train-head")(train_head)
app.command("compare-heads")(compare_heads)
app.command("train-cross-encoder")(train_cross_encoder)
app.command("train-biencoder")(train_biencoder)
app.command("label-pairs")(label_pairs)
app.command("train-translator")(train_translator)
app.command("compare-translators")(compare_translators)
app.command("doctor")(doctor)


def _placed(experiment: Experiment, output_dir: Path | None) -> Experiment:
    return experiment if output_dir is None else experiment.model_copy(update={"output_dir": str(output_dir)})


def _refuse_torchrun(what: str) -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(f"{what} runs in one process; start it without torchrun")


def _device(name: str | None) -> torch.device:
    from unimoe.models.device import choose_device

    return choose_device(name)


def _given(config: Path | None, override: list[str] | None, **options: object) -> list[str]:
    """What was asked for by hand, for the results' provenance; everything else had its default."""
    named = [f"--{name.replace('_', '-')} {value}" for name, value in options.items() if value not in (None, False)]
    return [*([f"--config {config}"] if config else []), *named, *(f"--set {text}" for text in override or [])]


def _announce(experiment: Experiment, bench: ModelBench, smoke: bool) -> None:
    """What will run, where, and for how long."""
    from unimoe.estimate import BUNDLED_SHAPE, estimated_seconds, expectation, shape_of
    from unimoe.models.bundled import BUNDLED_ID
    from unimoe.models.device import describe_device, probe_speed

    stderr.print(
        f"{experiment.name}: {len(experiment.arms)} arms x {len(experiment.seeds)} seeds, {experiment.model.base}, "
        f"{describe_device(bench.device)}, {bench.dtype_name}; results in {experiment.output_dir}",
        soft_wrap=True,
    )
    speed = probe_speed(bench.device.type).get(bench.dtype_name)
    if speed is not None:
        shape = BUNDLED_SHAPE if experiment.model.base == BUNDLED_ID else shape_of(bench.fresh_base())
        stderr.print(expectation(estimated_seconds(experiment, shape, speed), smoke), soft_wrap=True)


def _next_command(experiment: Experiment) -> str:
    arm, seed = next(reversed(experiment.arms)), experiment.seeds[0]
    checkpoint = Path(experiment.output_dir) / arm / f"seed_{seed}" / "checkpoint"
    return f"uv run scripts/evaluate.py --checkpoint {checkpoint} --eval-tier fast"


def _quiet_libraries() -> None:
    """Libraries keep their progress bars and advice to themselves; ours is on stderr."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
