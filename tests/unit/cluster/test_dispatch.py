"""Lost workers' units are computed by others, and whoever waits for a unit hears of it exactly once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine import PATIENCE, HandPool, unit

from unimoe.cluster import dispatch
from unimoe.cluster.dispatch import Dispatcher, Seat, SetAsideError
from unimoe.cluster.schedule import CRASHES, Unit
from unimoe.cluster.work import packed_error, unpacked
from unimoe.core.errors import DataError, UnimoeError, UsageError


@pytest.fixture(autouse=True, scope="module")
def short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_PAUSE", 0.005)
        yield


@contextmanager
def dispatching(admit: Callable[[Seat], bool] = lambda seat: True) -> Iterator[tuple[HandPool, Dispatcher]]:
    """A dispatcher with its pool; it has ended after the block."""
    pool = HandPool()
    dispatcher = Dispatcher(pool, admit)
    try:
        yield pool, dispatcher
    finally:
        dispatcher.close()
        assert pool.closed


def submitted(dispatcher: Dispatcher, *units: Unit) -> list[Future[bytes]]:
    for one in units:
        dispatcher.submit(one)
    return [one.reply for one in units]


def test_units_come_back_with_what_workers_returned() -> None:
    with dispatching() as (pool, dispatcher):
        first, second = submitted(dispatcher, unit("a"), unit("b"))
        pool.arrive("w1", "w2")
        for seat, given_unit in (pool.started(), pool.started()):
            pool.reply(seat, given_unit, given_unit.name.encode())
        assert (first.result(PATIENCE), second.result(PATIENCE)) == (b"a", b"b")
        assert dispatcher.seats == 2
        assert dispatcher.running == {}


def test_it_says_what_workers_compute_now() -> None:
    with dispatching() as (pool, dispatcher):
        submitted(dispatcher, unit("a", what="scifact"), unit("b", what="scifact"), unit("c", what="fiqa"))
        pool.arrive("w1", "w2")
        begun = [pool.started(), pool.started()]
        assert dispatcher.running == {"scifact": 2}
        pool.reply(*begun[0])
        pool.started()
        assert dispatcher.running == {"scifact": 1, "fiqa": 1}


def test_a_unit_whose_machine_is_lost_is_tried_without_limit() -> None:
    with dispatching() as (pool, dispatcher):
        (reply,) = submitted(dispatcher, unit())
        for number in range(5 * CRASHES):
            pool.arrive(f"w{number}")
            pool.lose(*pool.started())
        pool.arrive("last")
        seat, given_unit = pool.started()
        assert (seat.handle, dispatcher.seats) == ("last", 1)
        pool.reply(seat, given_unit, b"at last")
        assert reply.result(PATIENCE) == b"at last"


def test_a_unit_that_kills_its_workers_is_set_aside_by_name_and_the_rest_goes_on() -> None:
    with dispatching() as (pool, dispatcher):
        bad, good = unit("shard 7", what="reranking scifact: mine"), unit("shard 8")
        submitted(dispatcher, bad, good)
        for number in range(CRASHES):
            pool.arrive(f"w{number}")
            seat, given_unit = pool.started()
            assert given_unit is bad  # a unit that is tried again comes first
            pool.lose(seat, given_unit, crashed=True)
        with pytest.raises(SetAsideError, match=r"^reranking scifact: mine, shard 7: set aside, 3 .*\(it is gone\)"):
            bad.reply.result(PATIENCE)
        pool.arrive("next")
        seat, given_unit = pool.started()
        assert given_unit is good
        pool.reply(seat, given_unit)
        assert good.reply.result(PATIENCE) == b"done"
        assert dispatcher.failure is None


def test_lost_machines_do_not_count_as_crashes() -> None:
    with dispatching() as (pool, dispatcher):
        (reply,) = submitted(dispatcher, unit())
        for number in range(2 * (CRASHES - 1)):
            pool.arrive(f"w{number}")
            pool.lose(*pool.started(), crashed=number % 2 == 0)
        pool.arrive("last")
        pool.reply(*pool.started())
        assert reply.result(PATIENCE) == b"done"


def test_an_error_of_the_work_is_a_reply_and_is_not_tried_again() -> None:
    with dispatching() as (pool, dispatcher):
        wrong, right = submitted(dispatcher, unit("wrong"), unit("right"))
        pool.arrive("w")
        seat, given_unit = pool.started()
        pool.reply(seat, given_unit, packed_error(DataError("no such document"), "w"))
        seat, given_unit = pool.started()
        assert given_unit.name == "right"
        pool.reply(seat, given_unit)
        assert right.result(PATIENCE) == b"done"
        with pytest.raises(DataError, match="no such document"):
            unpacked(wrong.result(PATIENCE))
        assert pool.nothing_started()


def test_workers_keep_their_model_while_its_work_lasts() -> None:
    units = [unit(f"{system}{number}", system) for number in range(6) for system in ("x", "y", "z")]
    held: dict[str, list[str]] = {}
    with dispatching() as (pool, dispatcher):
        submitted(dispatcher, *units)
        pool.arrive("w1", "w2")
        for _ in units:
            seat, given_unit = pool.started()
            models = held.setdefault(seat.handle, [])
            if models[-1:] != [given_unit.system]:
                models.append(given_unit.system)
            pool.reply(seat, given_unit)
        for one in units:
            assert one.reply.result(PATIENCE) == b"done"
    assert sum(map(len, held.values())) <= 4  # three models, one of them loaded by both
    assert all(len(models) == len(set(models)) for models in held.values())


def test_a_unit_goes_to_the_idle_worker_that_holds_its_model() -> None:
    with dispatching() as (pool, dispatcher):
        pool.arrive("w1", "w2")
        holders: dict[str, str] = {}
        replies = submitted(dispatcher, unit("x", "x"), unit("y", "y"))
        for seat, given_unit in (pool.started(), pool.started()):
            holders[given_unit.system] = seat.handle
            pool.reply(seat, given_unit)
        for reply in replies:
            reply.result(PATIENCE)
        for system in ("y", "x", "x", "y"):
            (reply,) = submitted(dispatcher, unit(system, system))
            seat, given_unit = pool.started()
            assert seat.handle == holders[system]
            pool.reply(seat, given_unit)
            reply.result(PATIENCE)


def test_a_worker_without_a_model_loads_one_before_another_gives_its_own_up() -> None:
    with dispatching() as (pool, dispatcher):
        (reply,) = submitted(dispatcher, unit("x", "x"))
        pool.arrive("holds x")
        pool.reply(*pool.started())
        reply.result(PATIENCE)
        pool.arrive("new")
        _until(lambda: dispatcher.seats == 2)
        submitted(dispatcher, unit("y", "y"))
        assert pool.started()[0].handle == "new"


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_worker_that_is_not_admitted_gets_no_work() -> None:
    with dispatching(lambda seat: seat.facts["device"] == "cpu") as (pool, dispatcher):
        submitted(dispatcher, unit("a"), unit("b"))
        pool.arrive("other", device="cuda")
        pool.arrive("first", device="cpu")
        seat, given_unit = pool.started()
        assert (seat.handle, dispatcher.seats) == ("first", 1)
        pool.reply(seat, given_unit)
        assert pool.started()[0].handle == "first"


class TestEnds:
    @pytest.mark.parametrize(
        ("error", "kind", "message"),
        [
            (UsageError("a worker could not start"), UsageError, "^a worker could not start$"),
            (RuntimeError("lost the cluster"), DataError, "^RuntimeError: lost the cluster$"),
        ],
    )
    def test_a_failing_pool_ends_every_waiter(self, error: Exception, kind: type[Exception], message: str) -> None:
        with dispatching() as (pool, dispatcher):
            replies = submitted(dispatcher, unit("computed"), unit("waits"))
            pool.arrive("w")
            pool.started()
            pool.fail(error)
            for reply in replies:
                with pytest.raises(kind, match=message):
                    reply.result(PATIENCE)
            (late,) = submitted(dispatcher, unit("late"))
            with pytest.raises(kind, match=message):
                late.result(PATIENCE)

    def test_a_worker_that_must_not_be_used_ends_the_run(self) -> None:
        def admit(seat: Seat) -> bool:
            raise UsageError(f"{seat.handle} has torch 1")

        with dispatching(admit) as (pool, dispatcher):
            (reply,) = submitted(dispatcher, unit())
            pool.arrive("old")
            with pytest.raises(UsageError, match="old has torch 1"):
                reply.result(PATIENCE)

    def test_closing_ends_every_waiter(self) -> None:
        with dispatching() as (pool, dispatcher):
            replies = submitted(dispatcher, unit("computed"), unit("waits"))
            pool.arrive("w")
            pool.started()
        for reply in replies:
            with pytest.raises(UnimoeError, match="the engine was closed"):
                reply.result(PATIENCE)

    def test_a_waiter_that_gives_up_harms_nobody(self) -> None:
        with dispatching() as (pool, dispatcher):
            given_up, waiting, other = submitted(dispatcher, unit("given up"), unit("waiting"), unit("other"))
            pool.arrive("w")
            seat, first = pool.started()
            assert not given_up.cancel()  # it is computed already
            assert waiting.cancel()
            pool.reply(seat, first)
            seat, third = pool.started()
            assert third.name == "other"
            pool.reply(seat, third)
            assert other.result(PATIENCE) == b"done"
            assert dispatcher.failure is None


END = st.sampled_from(["reply", "reply", "lost", "crash"])


@given(
    systems=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    workers=st.integers(1, 4),
    ends=st.lists(END, max_size=60),
    newest_first=st.booleans(),
)
def test_every_unit_is_replied_to_once_whatever_is_lost(
    systems: list[str], workers: int, ends: list[str], newest_first: bool
) -> None:
    units = [unit(str(number), system) for number, system in enumerate(systems)]
    replies, tries, crashes = Counter[str](), Counter[str](), Counter[str]()
    for one in units:
        one.reply.add_done_callback(partial(lambda name, _: replies.update([name]), one.name))
    left = iter(ends)
    with dispatching() as (pool, dispatcher):
        submitted(dispatcher, *units)
        pool.arrive(*map(str, range(workers)))
        begun: list[tuple[Seat, Unit]] = []
        ended = 0
        while ended < len(units):
            while len(begun) < min(workers, len(units) - ended):  # so many must be at work by then
                begun.append(pool.started())
            seat, one = begun.pop(-1 if newest_first else 0)
            tries[one.name] += 1
            end = next(left, "reply")
            if end == "reply":
                pool.reply(seat, one, one.name.encode())
                ended += 1
                continue
            crashes[one.name] += end == "crash"
            pool.lose(seat, one, crashed=end == "crash")
            ended += end == "crash" and crashes[one.name] == CRASHES
            pool.arrive(f"after {seat.handle}")
        for one in units:
            if crashes[one.name] == CRASHES:
                with pytest.raises(SetAsideError):
                    one.reply.result(PATIENCE)
            else:
                assert one.reply.result(PATIENCE) == one.name.encode()
        assert dispatcher.failure is None
        assert dispatcher.running == {}
        assert pool.nothing_started()
    assert replies == dict.fromkeys((one.name for one in units), 1)
    assert sum(tries.values()) == len(units) + sum(1 for end in ends[: sum(tries.values())] if end != "reply") - sum(
        count == CRASHES for count in crashes.values()
    )


@given(
    count=st.integers(1, 8),
    workers=st.integers(0, 3),
    ends=st.lists(st.sampled_from(["reply", "lost", "crash", "late"]), max_size=12),
    how=st.sampled_from(["close", "fail"]),
)
def test_every_unit_is_replied_to_once_whenever_the_run_ends(
    count: int, workers: int, ends: list[str], how: str
) -> None:
    units = [unit(str(number)) for number in range(count)]
    replies, done = Counter[str](), set[str]()
    with dispatching() as (pool, dispatcher):
        pool.arrive(*map(str, range(workers)))
        for one in units:
            one.reply.add_done_callback(partial(lambda name, _: replies.update([name]), one.name))
        submitted(dispatcher, *units)
        for end in ends if workers else []:
            if len(done) == len(units):
                break
            if end == "late":
                units.append(unit(f"late {len(units)}"))
                units[-1].reply.add_done_callback(partial(lambda name, _: replies.update([name]), units[-1].name))
                dispatcher.submit(units[-1])
                continue
            seat, one = pool.started()
            if end == "reply":
                pool.reply(seat, one)
                assert one.reply.result(PATIENCE) == b"done"
                done.add(one.name)
                continue
            last = end == "crash" and one.crashes == CRASHES - 1
            pool.lose(seat, one, crashed=end == "crash")
            pool.arrive("another")
            if last:
                assert isinstance(one.reply.exception(PATIENCE), SetAsideError)
                done.add(one.name)
        if how == "fail":
            pool.fail(UsageError("no cluster"))
    for one in units:
        assert one.reply.done()
        if one.name not in done:
            assert isinstance(one.reply.exception(), UnimoeError)
    assert replies == dict.fromkeys((one.name for one in units), 1)
