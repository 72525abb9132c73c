"""Definitions: every form of them, what they refuse, and what calling them does."""
from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fusee_mp import Config, Ctx, Fatal, Rejected, Retry, Step, Workflow, query, signal, step, update, workflow
from fusee_mp.duration import DURATION_MS_MAX, to_ms

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Order:
    id: str


@workflow
async def plain(ctx: Ctx) -> None:
    """Says what it does."""


@workflow()
async def called(ctx: Ctx, order: Order) -> str:
    return order.id


@workflow("named", version=3, on_exhausted="pause", retention="90d")
async def function_name(ctx: Ctx, order: Order) -> list[Order]:
    return [order]


@step
async def charge(order: Order, *, currency: str = "EUR") -> str:
    return f"{order.id} {currency}"


@step(retry=Retry(attempts=5), timeout="5s", limit="bank", priority=2, fairness="ann", weight=3)
def render(order: Order) -> bytes:
    return order.id.encode()


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @step(timeout=1)
    async def quote(self, order: Order) -> str:
        return f"{self.name} {order.id}"

    @classmethod
    @step
    def owner(cls) -> str:
        return cls.__name__

    @staticmethod
    @step
    def tax(order: Order) -> int:
        return 1


def test_every_form_of_the_workflow_decorator_gives_a_definition() -> None:
    assert [w.name for w in (plain, called, function_name)] == ["plain", "called", "named"]
    assert all(isinstance(w, Workflow) for w in (plain, called, function_name))
    assert (function_name.version, function_name.on_exhausted, function_name.retention_ms) == (3, "pause", 90 * 86_400_000)
    assert (plain.version, plain.on_exhausted, plain.retention_ms) == (0, None, None)
    assert plain.__doc__ == "Says what it does." and plain.__name__ == "plain" and plain.__module__ == __name__
    assert repr(function_name) == '<workflow "named">'


def test_a_workflow_knows_the_types_of_its_input_and_its_result() -> None:
    assert called.takes_input and called.input_codec.type is Order and called.result_codec.type is str
    assert function_name.result_codec.type == list[Order]
    assert not plain.takes_input and plain.input_codec.type is None and plain.result_codec.type is None


def test_fn_is_the_undecorated_function() -> None:
    assert asyncio.run(called.fn(None, Order("a"))) == "a"
    assert inspect.iscoroutinefunction(charge.fn) and not inspect.iscoroutinefunction(render.fn)
    assert render.fn(Order("a")) == b"a"


def test_local_classes_may_annotate_local_definitions() -> None:
    @dataclass
    class Local:
        n: int

    @workflow
    async def inner(ctx: Ctx, local: Local) -> Local:
        return local

    @step(name="other")
    def make() -> Local:
        return Local(1)

    class Maker:
        @step
        def made(self) -> list[Local]:
            return []

    assert Maker().made.result_codec.roundtrip([Local(1)])[1] == [Local(1)]
    assert inner.input_codec.roundtrip(Local(1))[1] == Local(1)
    assert make.result_codec.type is Local


def a_def(ctx: Ctx) -> None: ...
async def a_generator(ctx: Ctx) -> Any: yield
async def no_context() -> None: ...
async def two_inputs(ctx: Ctx, a: int, b: int) -> None: ...
async def many(ctx: Ctx, *rest: int) -> None: ...
async def needs_keyword(ctx: Ctx, *, a: int) -> None: ...


@pytest.mark.parametrize(("make", "said"), [
    (lambda: workflow(a_def), "Write `async def a_def"), (lambda: workflow(a_generator), "Remove its `yield`"),
    (lambda: workflow()(3), "directly over the function"), (lambda: workflow(3), "found int 3"),
    (lambda: workflow(no_context), "a context and at most one input"), (lambda: workflow(two_inputs), "into one dataclass"),
    (lambda: workflow(many), "at most one input"), (lambda: workflow(needs_keyword), "at most one input"),
    (lambda: workflow(""), "is empty"), (lambda: workflow("a\0b"), "NUL character at position 1"),
    (lambda: workflow("\ud800"), "lone surrogate"),
    (lambda: workflow("ä" * 513), "at most 1,024 bytes of UTF-8, found 1,026"),
    (lambda: workflow("x", version=-1)(plain.fn), "from 0, found -1"),
    (lambda: workflow(on_exhausted="stop")(plain.fn), 'found \'stop\''), (lambda: workflow(retention="-1s")(plain.fn), "retention"),
    (lambda: plain(), "await engine.start(plain, id, input)"), (lambda: called(None, Order("a")), "called.fn(ctx, input)"),
    (lambda: step(3), "expects a function"), (lambda: step("name"), "@step(name="), (lambda: step(plain), "ctx.child"),
    (lambda: step(classmethod(a_def)), "Put @classmethod above @step"), (lambda: step(a_generator), "Return one result"),
    (lambda: step(name="")(a_def), "is empty"), (lambda: step(timeout=0), "more than zero"), (lambda: step(retry=3), "Retry(..) or None"),
    (lambda: step(weight=0), "from 1"), (lambda: step(priority=1.5), "a whole number"), (lambda: step(fairness=None), "text"),
    (lambda: step(pool=3), "Executor"), (lambda: step(limit=""), "limit name is empty"), (lambda: charge.with_(timeout="soon"), '"250ms"'),
    (lambda: signal(""), "signal name is empty"), (lambda: query("\0", returns=int), "query name"),
    (lambda: update(3, returns=int), "found int 3"),
])
def test_what_cannot_work_is_refused_when_it_is_made_and_the_message_says_what_to_do(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(Rejected) as caught:
        make()
    assert said in str(caught.value)


def test_an_unknown_option_raises_type_error() -> None:
    with pytest.raises(TypeError, match="retries"):
        charge.with_(retries=3)
    with pytest.raises(TypeError):
        step(retries=3)


def test_a_called_step_is_a_coroutine_that_outside_a_workflow_just_runs() -> None:
    for call, result in ((charge(Order("a"), currency="USD"), "a USD"), (render(Order("a")), b"a")):
        assert inspect.iscoroutine(call)
        assert asyncio.run(call) == result


def test_a_step_runs_in_a_thread_of_the_user() -> None:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(render(Order("t")))))
    thread.start()
    thread.join()
    assert results == [b"t"]


def test_on_a_loop_that_offers_fusee_step_the_loop_decides() -> None:
    asked: list[Any] = []

    class Loop(asyncio.SelectorEventLoop):
        async def fusee_step(self, step: Step[..., Any], args: Any, kwargs: Any) -> str:
            asked.append((step, args, kwargs))
            return "from the journal"

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(charge(Order("a"), currency="USD")) == "from the journal"
    assert asked == [(charge, (Order("a"),), {"currency": "USD"})]


def test_methods_are_steps_bound_to_their_object() -> None:
    shop = Shop("corner")
    assert asyncio.run(shop.quote(Order("a"))) == "corner a"
    assert asyncio.run(Shop.quote(shop, Order("b"))) == "corner b"
    assert asyncio.run(Shop.owner()) == "Shop" and asyncio.run(shop.tax(Order("a"))) == 1
    assert isinstance(shop.quote, Step) and shop.quote.name == "quote" and shop.quote.options.timeout_ms == 1000
    assert shop.quote.result_codec.type is str


def test_with_changes_only_what_it_is_given() -> None:
    changed = render.with_(timeout=None, name="print")
    options = changed.options
    assert (changed.name, options.timeout_ms, options.limit, options.retry) == ("print", None, "bank", Retry(attempts=5))
    assert (render.name, render.options.timeout_ms) == ("render", 5000)
    assert asyncio.run(changed(Order("a"))) == b"a"


def test_handles_are_equal_when_they_mean_the_same() -> None:
    review = signal("review", bool)
    assert review == signal("review", bool) and hash(review) == hash(signal("review", bool))
    assert review != signal("review", int) and review != signal("other", bool) and review != "review"
    assert (review.codec.type, signal("stop").codec.type) == (bool, None)
    add = update("add", str, returns=int)
    assert (add.codec.type, add.returns_codec.type) == (str, int)
    assert [repr(handle) for handle in (review, signal("stop"), add, query("items", returns=list[str]))] == [
        'signal("review", bool)', 'signal("stop")', 'update("add", str, returns=int)', 'query("items", returns=list[str])']


@pytest.mark.parametrize("options", [
    {"attempts": 0}, {"attempts": True}, {"attempts": 1.5}, {"attempts": 1 << 31}, {"initial": -1}, {"initial": "x"}, {"maximum": "50ms"},
    {"factor": 0.5}, {"factor": float("nan")}, {"factor": float("inf")}, {"jitter": -0.1}, {"jitter": 1.1}, {"jitter": float("nan")},
    {"only": (int,)}, {"only": "x"}, {"never": (BaseException,)},
])
def test_a_bad_retry_raises_rejected_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match=next(iter(options))):
        Retry(**options)


def test_a_retry_with_a_list_says_what_to_write() -> None:
    with pytest.raises(Rejected, match=r"found \[<class 'ValueError'>\]. Give never= such a value") as refused:
        Retry(never=[ValueError])  # type: ignore[arg-type]
    assert "as in (ValueError, OSError)" in refused.value.message


def test_a_retry_allows_what_it_names_and_never_what_is_fatal() -> None:
    retry = Retry(only=(OSError,), never=(FileNotFoundError,))
    assert retry.allows(ConnectionError()) and not retry.allows(FileNotFoundError()) and not retry.allows(ValueError())
    assert Retry().allows(ValueError()) and not Retry().allows(Fatal()) and not Retry().allows(KeyboardInterrupt())
    assert not Retry(only=(Fatal,)).allows(Fatal())
    assert Retry(only=OSError) == Retry(only=(OSError,))


def test_the_schedule_of_a_retry_has_its_numbers_in_milliseconds() -> None:
    schedule = Retry(attempts=3, initial="1.5s", maximum=timedelta(minutes=2), factor=3, jitter=0).schedule
    assert (schedule.attempts, schedule.initial_ms, schedule.maximum_ms, schedule.factor, schedule.jitter) == (3, 1500, 120_000, 3, 0)


@pytest.mark.parametrize(("duration", "ms"), [
    ("250ms", 250), ("1.5s", 1500), ("10m", 600_000), ("2h", 7_200_000), ("3d", 259_200_000), (" 1 s ", 1000), ("0.0001s", 1), ("0s", 0),
    (0, 0), (1, 1000), (0.1, 100), (0.0011, 2), (1e-9, 1), (1e3, 1_000_000),
    (timedelta(days=1, microseconds=1), 86_400_001),
    (timedelta(0), 0),
    (DURATION_MS_MAX // 1000, DURATION_MS_MAX),
])
def test_durations_become_whole_milliseconds_and_never_shrink_to_nothing(duration: Any, ms: int) -> None:
    assert to_ms(duration) == ms


@pytest.mark.parametrize("duration", [
    -1, -0.1, timedelta(microseconds=-1), "-1s", "1", "", "s", "1 week", "1e3s", "1,5s", "1s 2s", "١s", True, None,
    float("nan"), float("inf"), DURATION_MS_MAX // 1000 + 1, 10**400, "9" * 400 + "d", [1], object(),
])
def test_what_is_no_duration_is_refused_with_an_example(duration: Any) -> None:
    with pytest.raises(Rejected, match='^pause: expected .* Use "250ms", "1.5s"'):
        to_ms(duration, "pause")


@pytest.mark.parametrize("options", [
    {"shards": 0}, {"shards": 2000}, {"shards": True}, {"flush": "never"}, {"segment_bytes": 1}, {"park_after": -1}, {"retention": "x"},
    {"checkpoint_interval": None}, {"payload_bytes_max": 1 << 30}, {"on_exhausted": "x"}, {"memory_budget": 0}, {"dir": ""}, {"dir": 3},
])
def test_a_bad_config_raises_rejected_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match=next(iter(options))):
        Config(**{"dir": "data", **options})


def test_a_config_has_its_durations_in_milliseconds() -> None:
    config = Config(dir="data", retention="1d", park_after=None)
    assert (config.park_after_ms, config.retention_ms, config.checkpoint_interval_ms) == (None, 86_400_000, 30_000)


def test_importing_the_package_imports_none_of_its_parts() -> None:
    code = "import sys, fusee_mp; print([name for name in sys.modules if name.startswith('fusee_mp.') or name == 'asyncio'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
