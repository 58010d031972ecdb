"""What the verbs print, for people and for machines."""

from __future__ import annotations

import json

import pytest

from gateway.cli.output import cell, print_object, print_rows, show


def test_money_prints_as_amount_and_currency() -> None:
    assert show({"amount": "3.066", "currency": "CNY"}) == "3.066 CNY"
    assert show([{"amount": "0.1", "currency": "USD"}, {"amount": "2", "currency": "JPY"}]) == "0.1 USD, 2 JPY"


def test_null_is_a_dash_and_an_empty_list_means_none() -> None:
    assert show(None) == "-"
    assert show([]) == "none"
    assert show({}) == "-"


def test_a_column_may_name_a_field_of_a_field() -> None:
    row = {"tokens": {"input": 9}}
    assert cell(row, "tokens.input") == "9"
    assert cell(row, "tokens.output") == "-"


def test_rows_print_whole_into_a_pipe_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 150
    print_rows([{"id": long, "name": "[bold]no markup[/bold]"}], ("id", "name"), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert long in lines[1]
    assert "[bold]no markup[/bold]" in lines[1]


def test_json_is_what_the_api_said(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": 1, "name": "北京", "list": {"amount": "0.42", "currency": "USD"}}
    print_object(row, as_json=True)
    assert json.loads(capsys.readouterr().out) == row
    print_rows(iter([row]), ("id",), as_json=True)
    assert json.loads(capsys.readouterr().out) == [row]


def test_no_rows_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], ("id",), as_json=False)
    assert capsys.readouterr().out == "none\n"
    print_rows([], ("id",), as_json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_lists_of_objects_become_tables_under_their_object(capsys: pytest.CaptureFixture[str]) -> None:
    amounts = [{"amount": "1", "currency": "USD"}, {"amount": "7.3", "currency": "CNY"}]
    lines = [{"class": "input", "quantity": 9, "note": None}, {"class": "output", "quantity": 12, "note": None}]
    print_object({"id": "r1", "list": amounts, "lines": lines}, as_json=False)
    assert capsys.readouterr().out == (
        "id    r1\nlist  1 USD, 7.3 CNY\n\nlines\nclass   quantity\ninput   9\noutput  12\n"
    )
