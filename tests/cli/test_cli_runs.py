"""The commands about runs, against a real server and worker."""
from __future__ import annotations

import json

from tests.cli.harness import Cli, until


def test_run_prints_the_result(cli: Cli) -> None:
    answer = cli("run", "order", "run-1", '{"item": "lamp", "count": 3}')
    assert (answer.code, json.loads(answer.out), answer.err) == (0, "3 lamp, paid", "")


def test_run_with_json_names_id_and_status(cli: Cli) -> None:
    assert cli("run", "order", "run-2", '{"item": "lamp"}', "--json").json == {"id": "run-2", "status": "ok", "result": "1 lamp, paid"}


def test_start_without_an_id_makes_one_that_result_takes(cli: Cli) -> None:
    id = cli("start", "where").out.strip()
    assert len(id) == 32
    assert cli("result", id, "--timeout", "20s").code == 0


def test_a_workflow_that_fails_gives_code_1_and_its_error(cli: Cli) -> None:
    cli("start", "approval", "refused-1")
    assert cli("signal", "refused-1", "approved", "false").code == 0
    answer = cli("result", "refused-1")
    assert (answer.code, answer.out) == (1, "")
    assert 'workflow "refused-1" failed' in answer.err and "ValueError: it was not approved" in answer.err


def test_errors_with_json_are_one_object_on_stderr(cli: Cli) -> None:
    answer = cli("result", "nobody", "--json")
    error = json.loads(answer.err)["error"]
    assert (answer.code, answer.out, error["code"], error["id"]) == (1, "", "not_found", "nobody")


def test_status_follows_a_run_from_start_to_end(cli: Cli) -> None:
    cli("start", "approval", "status-1", "--attributes", '{"who": "ann"}')
    open_status = cli("status", "status-1", "--json").json
    assert open_status["is_open"] and open_status["workflow"] == "approval" and open_status["attributes"] == {"who": "ann"}
    cli("signal", "status-1", "approved", "true")
    cli("result", "status-1")
    shown = cli("status", "status-1").out
    assert "status      ok" in shown and '{"who":"ann"}' in shown


def test_describe_shows_the_journal_in_order(cli: Cli) -> None:
    cli("run", "order", "journal-1", '{"item": "lamp"}')
    journal = cli("describe", "journal-1", "--json").json["journal"]
    assert [(record["kind"], record["name"]) for record in journal] == [("start", "order"), ("step", "pay"), ("done", "")]
    assert "1 lamp, paid" in cli("describe", "journal-1").out


def test_describe_shows_why_a_run_failed(cli: Cli) -> None:
    cli("start", "approval", "refused-2")
    cli("signal", "refused-2", "approved", "false")
    cli("result", "refused-2")
    assert "ValueError: it was not approved" in cli("describe", "refused-2").out


def test_cancel_and_terminate_end_a_run_with_their_reason(cli: Cli) -> None:
    for verb, status in (("cancel", "cancelled"), ("terminate", "terminated")):
        cli("start", "approval", f"{verb}-1")
        assert cli(verb, f"{verb}-1", "nobody wants it").code == 0
        answer = cli("result", f"{verb}-1")
        assert answer.code == 1 and "nobody wants it" in answer.err, answer
        assert cli("status", f"{verb}-1", "--json").json["status"] == status


def test_what_is_sent_to_an_ended_run_is_refused_with_code_1(cli: Cli) -> None:
    cli("run", "order", "ended-1", '{"item": "lamp"}')
    answer = cli("signal", "ended-1", "approved", "true")
    assert answer.code == 1 and "has ended as ok" in answer.err


def test_an_id_that_is_taken_is_refused_unless_told_otherwise(cli: Cli) -> None:
    cli("start", "approval", "taken-1")
    again = cli("start", "approval", "taken-1")
    assert again.code == 1 and "is taken" in again.err
    assert cli("start", "approval", "taken-1", "--on-running", "use_existing").code == 0


def test_an_unknown_workflow_is_refused_and_the_known_are_named(cli: Cli) -> None:
    answer = cli("start", "ordre")
    assert answer.code == 1 and "approval" in answer.err and "order, where" in answer.err


def test_waiting_for_a_result_can_be_given_up_and_leaves_the_run_alone(cli: Cli) -> None:
    cli("start", "approval", "patient-1")
    answer = cli("result", "patient-1", "--timeout", "50ms")
    assert answer.code == 1 and "goes on" in answer.err
    assert cli("status", "patient-1", "--json").json["is_open"]


def test_list_and_count_filter_and_page(cli: Cli) -> None:
    for number in range(5):
        cli("run", "order", f"page-{number}", '{"item": "lamp"}', "--attributes", '{"kind": "paged"}')
    where = '{"kind": "paged"}'
    until(lambda: cli("count", "--where", where).out.strip() == "5")
    assert cli("count", "--where", where, "--json").json == {"count": 5}
    first = cli("list", "--where", where, "--limit", "3", "--json").json
    rest = cli("list", "--where", where, "--limit", "3", "--after", first[-1]["cursor"], "--json").json
    assert sorted(run["id"] for run in first + rest) == [f"page-{number}" for number in range(5)]
    table = cli("list", "--where", where, "--limit", "3")
    assert table.out.splitlines()[0].split() == ["ID", "WORKFLOW", "STATUS", "STARTED", "TOOK", "SHARD"]
    assert first[-1]["cursor"] in table.err


def test_shards_names_the_holder_of_each(cli: Cli) -> None:
    facts = until(lambda: (found := cli("shards", "--json").json) and all(shard["worker"] for shard in found["shards"]) and found)
    assert [shard["state"] for shard in facts["shards"]] == ["ready", "ready"]
    assert facts["workers"][0]["workflows"] == ["order", "approval", "where", "delivery"]
    assert facts["workers"][0]["worker"] in cli("shards").out
