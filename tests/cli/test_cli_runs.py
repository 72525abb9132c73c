"""The commands about runs, against a real server and worker."""
from __future__ import annotations

import json

import pytest

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
    assert answer.code == 1 and "approval" in answer.err and "order, spinning" in answer.err


def test_waiting_for_a_result_can_be_given_up_and_leaves_the_run_alone(cli: Cli) -> None:
    cli("start", "approval", "patient-1")
    answer = cli("result", "patient-1", "--timeout", "50ms")
    assert answer.code == 1 and "goes on" in answer.err
    assert cli("status", "patient-1", "--json").json["is_open"]


def test_waiting_for_a_paused_run_says_that_it_is_paused_why_and_what_lets_it_go_on(cli: Cli) -> None:
    cli("start", "stumbling", "paused-1")
    until(lambda: cli("status", "paused-1", "--json").json["status"] == "paused")
    said = cli("result", "paused-1", "--timeout", "50ms").err
    assert "it is paused, because" in said and "the words of the customer" in said
    assert "fusee-mp resume paused-1" in said and "goes on" not in said
    assert "the words of the customer" in next(line for line in cli("status", "paused-1").out.splitlines() if line.startswith("reason"))


def test_waiting_for_a_quarantined_run_says_that_it_is_quarantined_why_and_what_can_be_done(cli: Cli) -> None:
    cli("start", "spinning", "spinning-1")
    until(lambda: cli("status", "spinning-1", "--json").json["status"] == "quarantined")
    said = cli("result", "spinning-1", "--timeout", "50ms").err
    assert "it is quarantined, because" in said and "spinning" in said
    assert "fusee-mp reset spinning-1 STEP" in said and "goes on" not in said
    assert "reason      workflow \"spinning\"" in cli("status", "spinning-1").out
    head, *rows = cli("list", "--where", '{"status":"quarantined"}').out.splitlines()
    reason = cli("status", "spinning-1", "--json").json["reason"]
    assert head.endswith("REASON") and len(rows) == 1 and rows[0].endswith(" ".join(reason.split()))
    cli("terminate", "spinning-1")


def test_status_says_why_a_run_was_ended(cli: Cli) -> None:
    cli("start", "approval", "unwanted-1")
    cli("terminate", "unwanted-1", "nobody wants it")
    assert "reason      nobody wants it" in cli("status", "unwanted-1").out


def test_describe_shows_where_a_run_failed_within_the_width_of_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    cli("start", "approval", "refused-3")
    cli("signal", "refused-3", "approved", "false")
    cli("result", "refused-3")
    failure, _, _ = cli("describe", "refused-3").out.partition("\n\n")
    assert "orders.py" in failure and "in approval" in failure and 'raise ValueError("it was not approved")' in failure
    assert all(len(line) <= 72 for line in failure.splitlines()[6:] if " " in line.strip())


def test_describe_shows_payloads_whole_when_asked_to_or_when_there_is_room(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cli("run", "order", "long-1", json.dumps({"item": 100 * "lamp"}))
    assert 100 * "lamp" not in cli("describe", "long-1").out
    assert 100 * "lamp" in cli("describe", "long-1", "--wide").out
    monkeypatch.setenv("COLUMNS", "1000")
    assert 100 * "lamp" in cli("describe", "long-1").out


def test_a_run_that_has_ended_has_no_pending_steps(cli: Cli) -> None:
    cli("start", "stumbling", "ended-2")
    until(lambda: cli("describe", "ended-2", "--json").json["pending"])
    cli("terminate", "ended-2")
    assert cli("describe", "ended-2", "--json").json["pending"] == []


def test_a_value_of_another_type_is_refused_in_words_that_fit_a_command_line(cli: Cli) -> None:
    cli("start", "approval", "voices-1")
    answer = cli("update", "voices-1", "heard", "--", "-5")
    assert answer.code == 1 and "Give a value of that type" in answer.err and ". ." not in answer.err and ".. " not in answer.err


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
    assert facts["workers"][0]["workflows"] == ["order", "approval", "where", "delivery", "stumbling", "spinning"]
    worker, text = facts["workers"][0], cli("shards").out
    row = next(line for line in text.partition("WORKFLOWS")[2].splitlines() if line.startswith(worker["worker"]))
    assert row.split()[1] == "2" and worker["workflows"][0] in row
