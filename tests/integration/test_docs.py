"""README and manual against the code: blocks are run as printed or, where they say why not, at least parsed.

Those of ``extending.md`` are installed as a package of another name, which is used as a user would.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import typer
import yaml
from support.docs import Block, code_blocks, run_python
from support.experiments import tiny_experiment_dict
from support.results import write_experiment
from support.runs import random_qrels, random_run
from support.scripts import call_unimoe, successful
from support.studies import topics_folder
from support.tiny_models import save_tiny_encoder

from unimoe.cli.app import app
from unimoe.config import Experiment
from unimoe.config.files import load_experiment, parse_config
from unimoe.core.trec import Qrels, write_qrels, write_run
from unimoe.results import EvalResult, read_result
from unimoe.studies.common.family import family_of
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "unimoe"
MANUAL = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("studies/*.md"))]
TABLES = {
    "docs.csv": "id,title,body\nd1,Login,The page stays white\nd2,,The mail is lost\n",
    "queries.csv": "qid,query\n1,white page\n",
    "judged.csv": "qid,docno,label\n1,d1,1\n",
    "pairs.csv": "query,document,label\nwhite page,The page stays white,1\nwhite page,The mail is lost,0\n",
}
RUN = ["tutorial", "beside", "collections", "few-labels", "formats", "mteb", "unjudged"]
NOT_OURS = {"pip", "pytest", "torchrun", "start_the_next_training"}


def blocks(language: str, path: Path | None = None) -> list[Block]:
    return [block for page in ([path] if path else MANUAL) for block in code_blocks(page, language)]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block, without ``uv run``, comments and other people's programs."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&", line):
            words = shlex.split(part, comments=True)
            if words[:2] == ["uv", "run"]:
                words = words[2:]
            if words and words[0] not in NOT_OURS:
                yield words


def click_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that a line calls, and its arguments."""
    if words[0] == "unimoe":
        group: Any = typer.main.get_command(app)
        return group.commands[words[1]], words[2:]
    started: list[typer.Typer] = []
    with patch("unimoe.core.console.run", started.append), patch.object(sys, "argv", words[:]):
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    return typer.main.get_command(started[0]), words[1:]


def each(found: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", found, ids=lambda block: f"{block.path.stem}:{block.line}")


@each([block for block in blocks("bash") if block.not_run])
def test_every_command_has_the_options_that_a_page_gives_it(block: Block) -> None:
    for words in commands(block):
        command, arguments = click_command(words)
        command.make_context(words[0], arguments, resilient_parsing=False)


def gate_files() -> list[Block]:
    """The gate files that pages print whole, each with its name in the first line."""
    return [block for block in blocks("yaml") if "registered:" in block.text]


def gate_file_name(block: Block) -> str:
    return block.text.splitlines()[0].removeprefix("# ")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that README and manual speak of."""
    rng = np.random.default_rng(0)
    qrels: Qrels = random_qrels(40, rng)
    names = ["a1", "a2", "a3", "b1", "b2", "bm25", "splade", "colbert-seed1", "colbert-seed2", "run", "old", "new"]
    names += [f"runs/{d}/{name}" for d in ("dl19", "dl20") for name in ("bm25", "splade", "colbert-1", "colbert-2")]
    noise = {"b1": 2.0, "b2": 2.0, "old": 2.0}  # the joint model and the old one are clearly worse
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_run(tmp_path / f"{name}.trec", random_run(qrels, noise.get(name, 1.0), rng), tag=Path(name).name)
    (tmp_path / "tickets" / "qrels").mkdir(parents=True)
    (tmp_path / "tickets" / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": query_id, "text": f"question {query_id}"}) + "\n" for query_id in qrels), "utf-8"
    )
    for name in ("q.tsv", "q19.txt", "q20.txt", "tickets/qrels/test.tsv", "llm.qrels"):
        write_qrels(tmp_path / name, qrels)
    write_qrels(tmp_path / "human.tsv", {query: qrels[query] for query in rng.permutation(list(qrels))[:15].tolist()})
    for name in ("minilm", "bge"):
        kept = {"mteb_model_meta": {"model_name": f"org/{name}"}, "default": {"test": random_run(qrels, 1.0, rng)}}
        (tmp_path / "predictions" / name).mkdir(parents=True)
        (tmp_path / "predictions" / name / "SciFact_predictions.json").write_text(json.dumps(kept), encoding="utf-8")
    for block in gate_files():
        (tmp_path / gate_file_name(block)).write_text(block.text, "utf-8")
    write_experiment(tmp_path / "outputs" / "mine")
    for name, rows in TABLES.items():
        (tmp_path / name).write_text(rows, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@each([block for block in blocks("bash") if not block.not_run])
def test_a_command_does_what_the_page_says(block: Block) -> None:
    if "unimoe import" in block.text:
        shutil.rmtree("tickets")  # which it makes
    for words in commands(block):
        assert words[0] == "unimoe"
        assert successful(call_unimoe(*words[1:])).stdout


@pytest.mark.usefixtures("folder")
@each([block for block in blocks("text") if block.printed_by])
def test_a_command_prints_what_a_page_shows(block: Block) -> None:
    """Wherever lines are broken, which depends on the width of the terminal."""
    (words,) = commands(replace(block, text=block.printed_by))
    printed = " ".join(call_unimoe(*words[1:]).stdout.split())
    assert [line for line in block.text.splitlines() if " ".join(line.split()) not in printed] == []


def test_the_manual_says_what_the_run_of_its_pictures_found() -> None:
    """``docs/pictures.py`` makes both the pictures and the numbers from one run."""
    found = json.loads((DOCS / "figures" / "report.json").read_text("utf-8"))
    bundled, gallery = ((DOCS / page).read_text("utf-8") for page in ("bundled.md", "gallery.md"))
    for gate in found["gates"].values():
        value, low, high = gate["tir_percent"]
        assert f"{value:+.2f} % ({low:+.2f} to {high:+.2f})" in bundled
        assert f"(gate: {gate['label']})" in bundled
    for arm, seeds in found["scores"].items():
        assert ", ".join(f"{score:.2f}" for score in seeds) in bundled, arm
    table = gallery.partition("## A table\n")[2].partition("\n## ")[0]
    assert [line for line in table.splitlines() if line.startswith("|")] == found["table"]


def test_the_readme_has_700_words_and_begins_with_what_it_promises() -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    assert len(re.sub(r"<!--.*?-->|^\[!\[.*$", "", page, flags=re.MULTILINE).split()) <= 700
    assert blocks("bash", ROOT / "README.md")[0].text == "pip install .\nunimoe compare --example\n"


def test_the_navigation_has_every_page() -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(named) == sorted([*(path.relative_to(DOCS).as_posix() for path in MANUAL[1:]), "log/index.md"])


def test_every_other_block_of_python_says_why_it_is_not_run() -> None:
    run = {"python.md", "extending.md", *(f"{page}.md" for page in RUN)}
    for block in blocks("python"):
        assert block.path.name in run or block.not_run, f"{block.path}:{block.line}"


def test_every_gate_file_is_judged_by_a_command_of_its_page() -> None:
    """So ``test_a_command_does_what_the_page_says`` finds that its gates PASS there."""
    for block in gate_files():
        asked = [f"--gates {gate_file_name(block)}" in of.text for of in blocks("bash", block.path) if not of.not_run]
        assert any(asked), block.path


@each([block for block in blocks("yaml") if "registered:" not in block.text])
def test_a_piece_of_a_configuration_is_one(block: Block, tmp_path: Path) -> None:
    if "family:" in block.text:
        (tmp_path / "study.yaml").write_text(block.text, encoding="utf-8")
        study = load_study(tmp_path / "study.yaml")
        assert StudyRunner(family_of(study.family)(study)).tuned.keys() == study.arms.keys()
        return
    whole = load_experiment(Path("experiments/bundled")).model_dump()
    parse_config(Experiment, _merged(whole, yaml.safe_load(block.text)), source=str(block.path))


def test_the_page_of_keys_is_current_and_every_key_says_what_it_means() -> None:
    names = runpy.run_path(str(DOCS / "configuration.py"))
    page = (DOCS / "configuration.md").read_text("utf-8")
    assert page == names["page"](), "uv run python docs/configuration.py writes it again"
    rows = [line for line in page.splitlines() if "`" in line[:4]]
    assert len(rows) > 300
    assert [row for row in rows if row.endswith("|  |")] == []


def _merged(whole: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    return whole | {
        key: _merged(whole[key], value) if isinstance(value, dict) and isinstance(whole.get(key), dict) else value
        for key, value in piece.items()
    }


def numbers(text: str) -> list[str]:
    """The numbers with decimals of a text; a page writes 0.05 where the log writes .05."""
    return [number.removeprefix("0") for number in re.findall(r"(?<![\w.])\d*\.\d+(?![\w.]*\d)", text)]


@pytest.mark.parametrize("study", ["biencoder", "cross_encoder", "heads", "translator"])
def test_a_number_that_a_page_quotes_stands_in_a_log_that_it_links(study: str) -> None:
    page = (DOCS / "studies" / f"{study}.md").read_text(encoding="utf-8")
    text = page.partition("## What the measurements taught\n")[2].partition("\n## ")[0]
    logs = {DOCS / "log" / name for name in re.findall(r"\]\(\.\./log/([\w-]+\.md)", text)}
    logged = {number for log in logs for number in numbers(log.read_text(encoding="utf-8"))}
    quoted = numbers(re.sub(r"`[^`]*`|\]\([^)]*\)", "", text))
    assert quoted, "the section quotes no number"
    assert [number for number in quoted if number not in logged] == []


def first_column(page: str) -> list[str]:
    """The names in code of each table's first column."""
    rows = re.findall(r"^\| (`[^|]*) \|", (DOCS / page).read_text("utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_message_is_one_that_the_code_prints() -> None:
    text = "\n".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    # Adjacent string literals of a message are joined as Python joins them; what varies is left out on both sides.
    text = re.sub(r'"\s*\n\s*f?"', "", text).replace("`", "")
    messages = first_column("troubleshooting.md")
    assert len(messages) > 10
    for message in messages:
        for part in re.split(r"\s*…\s*", message):
            assert part.strip("(); ,:") in text, f"{message}: {part!r} is in no file"


@pytest.mark.parametrize("page", ["tour.md", "architecture.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", (DOCS / page).read_text("utf-8"))
    missing = [name for name in named if not any((root / name).is_file() for root in (SOURCE, ROOT))]
    assert named
    assert missing == []


def test_every_name_of_the_tour_is_in_a_file_of_its_stop() -> None:
    stops = (DOCS / "tour.md").read_text("utf-8").split("\n## ")[1:]
    assert len(stops) == 14
    for stop in stops:
        files = [name for name in re.findall(r"`([\w/]+\.py)`", stop) if (SOURCE / name).is_file()]
        text = "\n".join((SOURCE / name).read_text("utf-8") for name in files)
        for name in re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`", re.sub(r"```.*?```", "", stop, flags=re.DOTALL)):
            assert name.rpartition(".")[2] in text, f"{stop.splitlines()[0]}: {name}"


def test_every_key_of_a_result_is_explained() -> None:
    assert first_column("results.md") == list(EvalResult.model_fields)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", RUN)
def test_the_python_of_a_page_shows_what_comes_out(page: str) -> None:
    run_python(blocks("python", DOCS / f"{page}.md"))


def test_the_python_of_its_own_page_shows_what_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = [f"q{i:02d}" for i in range(40)]
    write_experiment(tmp_path / "outputs" / "mine")
    write_qrels(tmp_path / "qrels.txt", {query: {"relevant": 1} for query in queries})
    for name, hits in (("bm25", 2), ("mono-0", 4), ("mono-1", 5)):  # in so many of six queries the first is relevant
        first = {query: float(i % 6 < hits) for i, query in enumerate(queries)}
        scores = {query: {"relevant": value, "other": 0.5, "third": 0.25} for query, value in first.items()}
        write_run(tmp_path / f"{name}.trec", scores, name)
    topics_folder(tmp_path / "topics")
    monkeypatch.chdir(tmp_path)
    run_python(code_blocks(DOCS / "python.md"))


LIGHT = """
import json, sys
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile(cell["source"], "cell", "exec"), globals())
print(second.label, second.look, "torch" in sys.modules)
"""


def test_the_notebook_is_current_and_its_cells_run_without_torch() -> None:
    made: Any = runpy.run_path(str(DOCS / "notebook.py"))["notebook"]
    page = DOCS / "tutorial.ipynb"
    assert page.read_text("utf-8") == made(), "uv run python docs/notebook.py writes it again"
    done = subprocess.run([sys.executable, "-c", LIGHT, page], capture_output=True, text=True, check=False)
    assert done.stdout == "PASS 6 False\n", done.stderr


def test_the_citation_has_the_licences_and_authors_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert " AND ".join(citation["license"]) == project["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]


REGISTERS = {
    "losses": "@register_loss(",
    "measures": "register_measure(",
    "prompts": "register_prompt(",
    "sources": "register_source(",
    "apis": "register_api(",
    "rerankers": "register_model(",
}
"""By group of entry points: what the page's block of code for it calls."""

DISCOUNT = [block for block in code_blocks(DOCS / "extending.md", "python") if "register_discount(" in block.text]

COMMAND = """
def greet(name: str) -> None:
    '''Greet somebody.'''
    print(f"hello, {name}")


COMMANDS = {"greet": greet}
"""
FAMILY = """
from unimoe.studies.cross_encoder.family import CrossEncoderFamily


class Mine(CrossEncoderFamily):
    metrics = ("mrr@10", "ndcg@10")
"""
ENTRY_POINTS = """
[unimoe.commands]
mine = extras_command:COMMANDS
[unimoe.families]
mine = extras_family:Mine
broken = extras_family:Nothing
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages that holds one alone: modules, and a ``dist-info`` folder with entry points.

    It adds what ``extending.md`` shows, a command and a family.
    """
    folder, entries = tmp_path / "site", ENTRY_POINTS
    info = folder / "ranking_extras-1.0.dist-info"
    info.mkdir(parents=True)
    for group, call in REGISTERS.items():
        (block,) = (block for block in code_blocks(DOCS / "extending.md", "python") if call in block.text)
        (folder / f"extras_{group}.py").write_text(block.text, encoding="utf-8")
        entries += f"[unimoe.{group}]\nmine = extras_{group}\n"
    (folder / "extras_command.py").write_text(COMMAND, encoding="utf-8")
    (folder / "extras_family.py").write_text(FAMILY, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ranking-extras\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entries, encoding="utf-8")
    return folder


def unimoe(site: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints: on stderr, if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(site), "UNIMOE_CACHE": str(site / "cache")}
    command = [sys.executable, "-m", "unimoe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=site)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


def test_a_command_and_a_measure(site: Path) -> None:
    assert unimoe(site, "greet", "reader") == "hello, reader\n"
    assert "Greet somebody." in unimoe(site, "--help")
    (site / "run.trec").write_text("q1 Q0 d2 1 2.0 a\nq1 Q0 d1 2 1.0 a\nq2 Q0 d2 1 1.0 a\n", encoding="utf-8")
    (site / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\n", encoding="utf-8")
    scored = unimoe(site, "evaluate-run", "run.trec", "qrels.txt", "--metric", "first_is_best")
    assert "first_is_best" in scored
    assert "0.5000" in scored


def test_a_kind_of_model_reranks_a_collection_of_a_source(site: Path) -> None:
    unimoe(site, "evaluate", "--model", "overlap:any", "--dataset", "colours:garden", "--output-dir", "outputs")
    (folder,) = (site / "outputs" / "overlap").rglob("results/reranking")
    (file,) = (path for path in folder.iterdir() if path.suffixes == [".json"])
    assert read_result(file).per_query == {"q1": 1.0}


def test_an_arm_is_trained_with_a_loss_and_a_prompt(site: Path) -> None:
    settings = tiny_experiment_dict(site)
    settings["prompt"]["template"] = "bare"
    settings["training"]["steps"] = 2
    settings["training"]["ranking"] |= {"loss": "hinge"}
    (site / "discounts.py").write_text("\n".join(block.text for block in DISCOUNT), encoding="utf-8")
    (site / "tiny.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    train = ("train", "--config", "tiny.yaml", "--arm", "rank_only_r8", "--set")
    card = Path(unimoe(site, *train, "training.ranking.loss.margin=0.5").strip()) / "README.md"
    assert '"name": "hinge",\n  "activation": "Identity",\n  "margin": 0.5\n' in card.read_text("utf-8")
    misspelt = unimoe(site, *train, "training.ranking.loss.margn=0.5", code=2)
    assert "tiny.yaml: training.ranking.loss.margn: unknown key (did you mean 'margin'?); hinge takes" in misspelt
    changed = ("output_dir=discounted", "--set", "training.ranking.loss={name: plistmle, discount: half_life}")
    card = site / unimoe(site, "--import", "discounts", *train, *changed).strip() / "README.md"
    assert '"discount": "half_life"' in card.read_text("utf-8")
    assert "there is no rank discount 'half_life'" in unimoe(site, *train, *changed, code=2)
    misspelt = unimoe(site, *train, "served={api: hit, model: x}", code=2)
    assert "there is no served API 'hit' (did you mean 'hits'?)" in misspelt


def test_a_study_trains_a_family(site: Path) -> None:
    encoder, topics = save_tiny_encoder(site / "encoder"), topics_folder(site / "topics")
    base = {
        "model": {"base": str(encoder), "max_length": 48},
        "lists": {"source": f"path:{topics}", "max_docs": 4},
        "evaluation": {"depth": 6},
        "max_steps": 2,
    }
    study = {"name": "s", "family": "mine", "base": base, "arms": {"a": {}}, "seeds": 1}
    (site / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    assert "s on topics: MRR@10" in unimoe(site, "study", "study.yaml", "--device", "cpu")
    broken = unimoe(site, "study", "study.yaml", "--set", "family=broken", code=2)
    assert "ranking-extras: its entry point broken = extras_family:Nothing" in broken


def test_a_package_that_cannot_be_imported_is_named_and_takes_no_command_away(site: Path) -> None:
    for name in ("command", "measures"):
        (site / f"extras_{name}.py").write_text("import no_such_module\n", encoding="utf-8")
    said = unimoe(site, "evaluate-run", "run.trec", "qrels.txt", "--metric", "ndcg@10", code=2)
    assert "ranking-extras: its entry point mine = extras_" in said
    assert "evaluate-run" in unimoe(site, "--help")
