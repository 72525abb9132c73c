"""`query` and `update`, against a real server and worker."""
from __future__ import annotations

import json

from tests.cli.harness import Cli


def test_an_update_prints_its_result_and_a_query_the_state(cli: Cli) -> None:
    cli("start", "approval", "voices-1")
    assert cli("update", "voices-1", "heard", '"ann"', "--json").json == {"id": "voices-1", "update": "heard", "result": 1}
    assert cli("update", "voices-1", "heard", '"bob"').out == "2\n"
    assert json.loads(cli("query", "voices-1", "voices").out) == ["ann", "bob"]
    assert cli("query", "voices-1", "voices", "--json").json == {"id": "voices-1", "query": "voices", "answer": ["ann", "bob"]}


def test_an_update_repeated_with_its_id_prints_the_first_result(cli: Cli) -> None:
    cli("start", "approval", "voices-2")
    assert [cli("update", "voices-2", "heard", '"ann"', "--update-id", "u-1").out for _ in range(2)] == ["1\n", "1\n"]
    cli("signal", "voices-2", "approved", "true")
    cli("result", "voices-2")
    assert cli("update", "voices-2", "heard", '"ann"', "--update-id", "u-1").out == "1\n"
    assert json.loads(cli("query", "voices-2", "voices").out) == ["ann"]


def test_what_is_refused_gives_code_1_and_the_reason(cli: Cli) -> None:
    cli("start", "approval", "voices-3")
    answer = cli("update", "voices-3", "heard", '"nobody"')
    assert (answer.code, answer.out) == (1, "") and "nobody has no voice" in answer.err
    answer = cli("query", "voices-3", "price", "--json")
    error = json.loads(answer.err)["error"]
    assert (answer.code, error["code"]) == (1, "rejected") and '"voices"' in error["message"]
    assert cli("update", "voices-3", "heard", "{").code == 2
