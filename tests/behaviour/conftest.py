"""The fixture `scene` runs a scenario, an `async def` of a home, over the home that the test asks for."""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from behaviour_homes import HOMES, LENT
from behaviour_places import Place, ServedPlace

Scenario = Callable[[Any], Coroutine[Any, Any, Any]]
Scene = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def no_server_stays() -> Iterator[None]:
    """Tests of other modules count the processes below this one."""
    yield
    LENT.close()


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest) -> Any:
    return HOMES[request.param]


@pytest.fixture
def scene(home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """`scene(scenario)`; a scenario that restarts says so, and is skipped where nothing outlives the engine."""
    monkeypatch.setenv("FUSEE_TEST_NOTES", str(tmp_path / "notes"))

    def play(scenario: Scenario, *, restarts: bool = False, **options: Any) -> Any:
        if restarts and not home.keeps:
            pytest.skip("nothing outlives this home")
        if options and not home.takes_options:
            pytest.skip("this home takes no options")

        async def main() -> Any:
            here = home(tmp_path, **options)
            await here.open()
            try:
                return await asyncio.wait_for(scenario(here), 60)
            finally:
                await here.close()

        return asyncio.run(main())

    return play


@pytest.fixture
def near(home: Any, scene: Scene) -> Scene:
    """`scene` in this process alone: what a server changes nothing about."""
    if home is HOMES["server"]:
        pytest.skip("a server changes nothing about it")
    return scene


@pytest.fixture(params=["embedded", "server"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place that remembers, for tests that leave it and come back."""
    monkeypatch.setenv("FUSEE_TEST_NOTES", str(tmp_path / "notes"))
    yield from _place(request.param, tmp_path)


@pytest.fixture(params=["memory", "embedded", "server"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("FUSEE_TEST_NOTES", str(tmp_path / "notes"))
    yield from _place(request.param, tmp_path)


def _place(kind: str, directory: Path) -> Iterator[Place]:
    if kind != "server":
        yield Place(None if kind == "memory" else directory / "data")
        return
    served = ServedPlace(directory / "data")
    yield served
    served.close()
