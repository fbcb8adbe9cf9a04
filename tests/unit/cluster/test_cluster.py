"""A driver with workers in threads, whose units, folders and errors arrive; and processes that score together."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engine import PATIENCE, ThreadActors, calls, recipe
from support.scripts import assert_refused, call_unimoe
from torch import distributed

from unimoe.cluster import folder_job, processes
from unimoe.cluster.actors import RayActors
from unimoe.cluster.cluster import Cluster, ClusterWorkers, SetAsideError
from unimoe.cluster.folder_job import Tick, done_by_worker, folder_jobs
from unimoe.cluster.processes import Processes, joined_processes
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import VERSIONS, Compute, Part, Worker
from unimoe.core.errors import DataError, InputError, UsageError

NUMBERS = [*range(12)]


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    calls.made = calls.numbers = 0


def cluster(folder: Path, workers: int = 2, actors: ThreadActors | None = None) -> closing[Cluster]:
    return closing(Cluster(actors or ThreadActors(str(folder), workers), UnitStore(str(folder))))


def products(driver: Cluster, numbers: list[int]) -> list[float]:
    parts = [{"number": number, "label": f"number {number}"} for number in numbers]
    workers = ClusterWorkers(driver, "work", "units/work", recipe(), "2")
    replies: Iterator[Any] = workers.compute("multiply", parts)
    return [reply.item() for reply in replies]


def in_store(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "units").rglob("*") if path.is_file())


def test_each_worker_loads_a_model_once_and_only_what_is_lost_is_computed_again(tmp_path: Path) -> None:
    expected = [2.0 * number for number in NUMBERS]
    with cluster(tmp_path) as driver:
        assert products(driver, NUMBERS[:7]) == expected[:7]
    assert calls.made <= 2
    with cluster(tmp_path, workers=1) as driver:
        assert products(driver, NUMBERS) == expected
        line = driver.board.line("work")
        assert (line.done, line.found) == (12, 7)
    assert calls.numbers == len(in_store(tmp_path)) == len(NUMBERS)
    victim = in_store(tmp_path)[5]
    victim.unlink()
    with cluster(tmp_path) as driver:
        assert products(driver, NUMBERS) == expected
    assert calls.numbers == len(NUMBERS) + 1
    victim.write_bytes(victim.read_bytes()[:-2])
    message = f"{victim.name} is damaged .*: delete it, and run"
    with cluster(tmp_path) as driver, pytest.raises(DataError, match=message):
        products(driver, NUMBERS)


def test_an_error_of_the_work_ends_it_and_leaves_no_unit(tmp_path: Path) -> None:
    with cluster(tmp_path) as driver, pytest.raises(ValueError, match="-1 is below zero"):
        products(driver, [1, 2, -1])
    assert (calls.numbers, len(in_store(tmp_path))) == (3, 2)


def test_a_unit_that_kills_its_workers_is_set_aside_by_name_and_the_rest_is_kept(tmp_path: Path) -> None:
    actors = ThreadActors(str(tmp_path), 2)
    actors.deadly = {3}
    with cluster(tmp_path, actors=actors) as driver:
        with pytest.raises(SetAsideError, match=r"^work, number 3: set aside, 3 worker processes died under it"):
            products(driver, NUMBERS)
        assert actors.computed.count(3) == 3
        assert sorted(actors.computed) == sorted([*NUMBERS, 3, 3])
        assert len(in_store(tmp_path)) == len(NUMBERS) - 1
        assert len(driver.board.line("work").failed) == 1
        actors.deadly = set()
        assert products(driver, NUMBERS) == [2.0 * number for number in NUMBERS]
    assert calls.numbers == len(NUMBERS)


def test_a_worker_that_must_not_be_used_ends_the_run(tmp_path: Path) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"sees_store": False}, "does not see the store .*; give --store a URL or a folder that all"),
        ({"versions": dict.fromkeys(VERSIONS, "0")}, "has unimoe 0, the driver .*; install the same packages"),
    )
    for facts, words in refused:
        actors = ThreadActors(str(tmp_path), 1, **facts)
        with cluster(tmp_path, actors=actors) as driver, pytest.raises(UsageError, match=words):
            products(driver, NUMBERS)


@pytest.mark.parametrize("allow", [False, True])
def test_a_worker_on_another_kind_of_device_is_left_idle(
    tmp_path: Path, allow: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    actors = ThreadActors(str(tmp_path), 1)
    with closing(Cluster(actors, UnitStore(str(tmp_path)), allow_devices=allow)) as driver:
        driver.facts()
        actors.change(count=2, device="cuda (H100)")
        deadline, said = time.monotonic() + PATIENCE, ""
        while actors.asked < 2 or driver.size < 1 + allow or ("left idle: " in said) == allow:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            said += capsys.readouterr().err
        assert driver.size == 1 + allow


PART: Part = {"key": "k", "steps": 4}
COUNTING = {"maker": f"{__name__}:jobs_of"}
taken: list[int] = []
"""Steps that were taken, by all workers."""


def jobs_of(recipe: Mapping[str, Any], device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """The job of counting to a number in a file; it may stop in between."""

    def write(part: Part, folder: Path, tick: Tick) -> int:
        counter = folder / "counter.json"
        done = int(counter.read_text()) if counter.exists() else 0
        for step in range(done, part["steps"]):
            taken.append(step)
            counter.write_text(str(step + 1))
            tick()
            if part.get("stops") == step:
                raise DataError("stopped")
        (folder / "state.safetensors").write_text("of no use to the driver")
        (folder / "place.json").write_text(f'"{folder}/model"')
        return done

    return folder_jobs(write, store)


def on_store(folder: Path, device: str | None = None) -> closing[Cluster]:
    """A driver of one worker, over a store inside ``folder``."""
    facts = {"device": device} if device else {}
    return cluster(folder / "store", actors=ThreadActors(str(folder / "store"), 1, **facts))


def test_the_driver_takes_the_folder_over_with_its_own_path_and_names_one_that_was_lost(tmp_path: Path) -> None:
    with on_store(tmp_path) as driver:
        assert done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out", int, items=4) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["counter.json", "place.json"]
    assert (tmp_path / "out" / "place.json").read_text() == f'"{tmp_path}/out/model"'
    for path in (tmp_path / "store" / "folders").rglob("files.json"):
        path.unlink()
    with on_store(tmp_path) as driver, pytest.raises(DataError, match=r"is missing; delete units/folders there"):
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "again", int)


@pytest.mark.parametrize("device", [None, "cuda (H100)"])
def test_another_worker_goes_on_where_one_ended_on_the_same_kind_of_device(
    tmp_path: Path, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_job, "_EVERY", -1.0)  # saves after each step
    taken.clear()
    with on_store(tmp_path) as driver, pytest.raises(DataError, match="stopped"):
        done_by_worker(driver, "count", COUNTING, {**PART, "stops": 1}, tmp_path / "out", int)
    with on_store(tmp_path, device=device) as driver:
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out", int)
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "again", int)
    assert taken == ([0, 1, 0, 1, 2, 3] if device else [0, 1, 2, 3])
    assert (tmp_path / "again" / "counter.json").read_text() == "4"


def listing(folder: Path, content: Any) -> None:
    """Write what a store lists of a finished folder."""
    (path,) = (folder / "store" / "folders").rglob("finished/files.json")
    path.write_text(json.dumps(content))
    for name in content if isinstance(content, list) else ():  # each is there
        with suppress(ValueError, OSError):
            (path.with_name("files") / str(name).replace("/", "--")).write_text("evil")


OUTSIDE = ["../evil", "/tmp/evil", "a/../../evil", "..\\evil", "C:\\evil", "C:evil", "~/evil", "a\x00b"]
NO_FILES = ["", ".", "a/", "a//b", ".bashrc", "a/.git/config", 3, None, ["a"]]


@pytest.mark.parametrize("name", [*OUTSIDE, *NO_FILES])
def test_a_store_writes_nothing_but_files_below_the_folder(name: Any, tmp_path: Path) -> None:
    with on_store(tmp_path) as driver:
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out", int)
    listing(tmp_path, ["fine.json", name])
    with on_store(tmp_path) as driver, pytest.raises(DataError, match=r"files\.json is damaged .*delete it, and run"):
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "again", int)
    assert not (tmp_path / "again").exists(), "nothing is written before all names are read"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "store"}
    assert not Path("/tmp/evil").exists()


def test_a_store_writes_over_no_file_of_other_work(tmp_path: Path) -> None:
    with on_store(tmp_path) as driver:
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out", int)
    (tmp_path / "other").mkdir()
    listing(tmp_path, ["own/seed_0/fine.json", "other/result.json"])
    words = r"files\.json: other/result\.json is no file of this work, which is below own/seed_0; delete it"
    with on_store(tmp_path) as driver, pytest.raises(DataError, match=words):
        done_by_worker(driver, "count", COUNTING, PART, tmp_path, int, below="own/seed_0")
    assert not any((tmp_path / "other").iterdir())
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("content", [3, None, {"a": 1}, "name"])
def test_a_list_of_files_that_is_none_is_named(content: Any, tmp_path: Path) -> None:
    with on_store(tmp_path) as driver:
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out", int)
    listing(tmp_path, content)
    with on_store(tmp_path) as driver, pytest.raises(DataError, match=r"files\.json is damaged"):
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "again", int)


def test_a_link_in_the_folder_leads_no_file_out_of_it(tmp_path: Path) -> None:
    with on_store(tmp_path) as driver:
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "out", int)
    listing(tmp_path, ["link/evil"])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "link").symlink_to(tmp_path / "elsewhere")
    with on_store(tmp_path) as driver, pytest.raises(DataError, match=r"leads out of .* by a link there; remove the"):
        done_by_worker(driver, "count", COUNTING, PART, tmp_path / "again", int)
    assert not [*(tmp_path / "elsewhere").iterdir()]


REPLIES = [
    b'{"value": "text"}\n', b"3\n", b"[null]\n", b"[" * 99_999, b'{"dtype": "O", "shape": [1]}\n12345678',
    b'{"dtype": "<f4", "shape": [-2]}\n', b'{"dtype": [["a", "O"]], "shape": [1]}\n', b"\xff\n", b"",
]  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES)
def test_a_unit_that_is_no_reply_is_one_line(reply: bytes, tmp_path: Path) -> None:
    def read(value: Any, part: Part) -> float:
        return float(value[0] * 1.0)

    with cluster(tmp_path) as driver:
        workers = ClusterWorkers(driver, "products", "units/products", recipe())
        assert [*workers.compute("multiply", [{"number": 3}], read)] == [6]
    (unit,) = in_store(tmp_path)
    unit.write_bytes(reply)
    with cluster(tmp_path) as driver, pytest.raises(DataError, match=r"is damaged .*: delete it, and run again"):
        [*ClusterWorkers(driver, "products", "units/products", recipe()).compute("multiply", [{"number": 3}], read)]


class OwnError(Exception):
    """Cannot be made of its message."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


ERRORS = [DataError("no such file\nhere"), torch.OutOfMemoryError("no room"), InputError(7, "long"), OwnError(1, 2)]


def failing_jobs(recipe: Mapping[str, Any], device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """The job that raises an error."""

    def fail(part: Part) -> None:
        raise ERRORS[part["number"]]

    return {"fail": fail}


def test_errors_arrive_with_kind_message_and_place_or_where_they_cannot_be_made_again_as_words(tmp_path: Path) -> None:
    worker, maker = Worker(str(tmp_path), "cpu", torch.get_num_threads()), {"maker": f"{__name__}:failing_jobs"}
    replies = [worker.compute(maker, "fail", {"number": number}, ("units", "key")) for number in range(len(ERRORS))]
    assert UnitStore(str(tmp_path)).keys("units") == set()
    *found, own = pickle.loads(pickle.dumps(replies))
    assert [(type(one), str(one)) for one in found] == [(type(one), str(one)) for one in ERRORS[:-1]]
    assert all(one.__notes__[0].startswith("in ") for one in found)
    assert (found[-1].index, found[-1].reason) == (7, "long")
    assert (type(own), str(own)) == (RuntimeError, "OwnError: 1 and 2")


TIMED_OUT = Exception(
    "The current node timed out during startup. This could happen because some of the raylet failed to startup or the "
    "GCS has become overloaded."
)


@pytest.mark.parametrize("error", [TIMED_OUT, RuntimeError("no\nspace left"), ValueError(), AssertionError("port")])
def test_a_ray_that_does_not_start_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(**options: Any) -> None:
        raise error

    # In place of Ray's own, so that an install without it is tested too.
    there = SimpleNamespace(init=fail, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", there)
    evaluate = ("evaluate", "--model", "bundled:all-minilm-l6-v2", "--engine", "ray", "--store", tmp_path / "store")
    own = signal.getsignal(signal.SIGTERM)
    assert_refused(call_unimoe(*evaluate), 2, "Ray does not start on this machine (", "ray stop --force")
    assert_refused(call_unimoe(*evaluate, "--address", "auto"), 2, "--address auto: no Ray cluster answers (", "--head")
    assert signal.getsignal(signal.SIGTERM) is own


@pytest.mark.parametrize("call", ["nodes", "cluster_resources", "remote"])
def test_a_ray_that_goes_away_is_one_line(call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The calls that look for room and make the first worker."""

    class Gone:
        def __getattr__(self, name: str) -> Any:
            if name == call:
                raise Exception("GCS\nis gone")
            answers = {"nodes": [{"Alive": True, "Resources": {"CPU": 4}, "NodeID": "a"}], "cluster_resources": {}}
            return lambda *_, **__: answers.get(name, self)

    actors = RayActors.__new__(RayActors)
    actors._ray, actors._actor, actors._most = Gone(), Gone(), None
    actors._store, actors._device, actors._threads = str(tmp_path), None, 1
    with closing(Cluster(actors, UnitStore(str(tmp_path)))) as driver:
        monkeypatch.setattr(actors, "close", lambda: None)
        with pytest.raises(UsageError, match=r"^Ray('s cluster| makes) .*\(GCS is gone\); "):
            driver.facts()


# Two processes, as torchrun would start them; forked, so that torch is imported once. Each prints what it got, and
# how many threads of the group are left. Libraries that are imported meanwhile may keep what they find of it.
TOGETHER = """
import json, os, time, torch
from contextlib import suppress
from pathlib import Path
from unimoe.cluster.processes import joined_processes

def threads():
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            names.append((thread / "comm").read_text())
    return sum("gloo" in name for name in names)

os.environ["RANK"] = "1" if os.fork() == 0 else "0"
with joined_processes() as here:
    import torch.distributed.nn.functional
    gaps = torch.zeros(3)
    gaps[here.rank] = 0.1 + here.rank
    total = here.total(gaps).tolist()
    here.wait()
    dtype = here.leaders_dtype(torch.bfloat16 if here.leads else torch.float32)
    before = threads()
deadline = time.monotonic() + 20  # the system forgets a thread a moment after it has been joined
while threads() and time.monotonic() < deadline:
    time.sleep(0.01)
found = json.dumps([here.rank, here.size, here.leads, total, str(dtype), before > 0, threads()])
os.write(1, f"{found}\\n".encode())
"""


def announced(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The environment that torchrun gives to the first of ``size`` processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    values = {"WORLD_SIZE": size, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_every_item_belongs_to_one_process() -> None:
    shares = [Processes(rank, 3).share(range(7)) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == list(range(7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads of a process from /proc")
def test_two_processes_sum_and_follow_the_leader_and_no_thread_outlives_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announced(monkeypatch, 2)
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=600, check=True)
    total = torch.tensor([0.1, 1.1, 0.0]).tolist()
    assert sorted(map(json.loads, done.stdout.splitlines())) == [
        [rank, 2, rank == 0, total, "torch.bfloat16", True, 0] for rank in (0, 1)
    ]


def test_fewer_processes_than_announced_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    announced(monkeypatch, 2)
    monkeypatch.setattr(processes, "_ARRIVAL", timedelta(seconds=1))
    refusal = r"announces 2 processes, .* 1/2 clients joined.* start them with torchrun"
    with pytest.raises(UsageError, match=refusal), joined_processes():
        pass
    assert not distributed.is_initialized()
