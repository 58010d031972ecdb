"""Figures that pages make of others' words: an engine's metrics, sums of sums, ranges of days, charts."""

from __future__ import annotations

from decimal import Decimal
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.times import DAY_US, HOUR_US
from gateway.dashboard.charts import HEIGHT, TICK_CHARACTER, WIDTH, Bar, bars, share, ticks
from gateway.dashboard.figures import add_up, difference
from gateway.dashboard.live import figures
from gateway.dashboard.ranges import RANGES, read_range
from gateway.dashboard.visit import total
from local_engine.messages import Stats
from local_engine.metrics import EngineMetrics
from tests.billing.helpers import at


def test_an_engines_page_shows_what_its_metrics_say() -> None:
    metrics = EngineMetrics("m")
    stats = Stats(
        running=3, waiting=2, free_blocks=25, num_blocks=100, prompt_tokens=70, generated_tokens=9, preemptions=1
    )
    metrics.follow(lambda: stats)
    shown = figures(metrics.render().decode())
    assert shown == {
        "running": 3,
        "waiting": 2,
        "kv": Decimal("75.0"),
        "blocks": 100,
        "free": 25,
        "hits": None,
        "prompt": 70,
        "generated": 9,
        "preempted": 1,
    }


def test_of_a_foreign_engine_is_shown_what_it_tells() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 3.0\n'
        "vllm:kv_cache_usage_perc 0.125\n"
        "vllm:prefix_cache_queries_total 1e+03\nvllm:prefix_cache_hits_total 333.0\n"
        "# HELP vllm:other 1\n"
    )
    shown = figures(text)
    assert (shown["running"], shown["kv"], shown["hits"]) == (5, Decimal("12.5"), Decimal("33.3"))
    assert (shown["waiting"], shown["blocks"]) == (None, None)


amounts = st.decimals(min_value="-999999999", max_value="999999999", places=9)
moneys = st.lists(
    st.builds(lambda a, c: {"amount": str(a), "currency": c}, amounts, st.sampled_from(["CNY", "USD", "JPY"]))
)


@given(st.lists(moneys))
def test_sums_are_exact_per_currency_in_any_order(lists: list[list[dict[str, str]]]) -> None:
    expected: dict[str, Decimal] = {}
    for each in lists:
        for view in each:
            expected[view["currency"]] = expected.get(view["currency"], Decimal(0)) + Decimal(view["amount"])
    merged = [[view] for each in lists for view in each] + [[]]
    assert {v["currency"]: Decimal(v["amount"]) for v in total(merged)} == expected
    assert total(merged) == total(list(reversed(merged)))


def test_a_saving_is_only_told_where_there_is_something_to_compare_with() -> None:
    cny, usd = {"amount": "3", "currency": "CNY"}, {"amount": "2", "currency": "USD"}
    assert difference([{"amount": "10.5", "currency": "CNY"}, usd], [cny]) == [{"amount": "7.5", "currency": "CNY"}]
    assert difference([{"amount": "0", "currency": "CNY"}], [cny]) == []
    nothing = add_up([])
    assert (nothing["requests"], nothing["settled"], nothing["saving_percent"]) == (0, [], None)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "Asia/Kolkata", "America/New_York", "Pacific/Auckland"])
@pytest.mark.parametrize("name", RANGES)
def test_a_range_is_whole_days_of_its_zone_around_now(name: str, zone: str) -> None:
    now_us = at("2026-11-01T12:34:56Z")
    chosen = read_range({"range": name, "tz": zone}, "UTC", now_us)
    assert chosen.start_us % (HOUR_US // 4) == 0 and chosen.end_us % (HOUR_US // 4) == 0
    assert chosen.start_us < now_us
    assert (chosen.end_us > now_us) == (name != "last_month")
    length = chosen.end_us - chosen.start_us
    wanted = {"24h": 24, "7d": 7 * 24, "30d": 30 * 24}.get(name)
    assert wanted is None or abs(length - wanted * HOUR_US) <= HOUR_US  # a clock may change within
    again = read_range({"from": chosen.first_day, "to": chosen.last_day, "tz": zone}, "UTC", now_us)
    assert name == "24h" or (again.start_us, again.end_us) == (chosen.start_us, chosen.end_us)
    assert read_range(chosen.query, "UTC", now_us) == chosen


def test_a_day_of_25_hours_is_a_day() -> None:
    chosen = read_range({"from": "2026-10-25", "to": "2026-10-25", "tz": "Europe/Berlin"}, "UTC")
    assert chosen.end_us - chosen.start_us == DAY_US + HOUR_US
    assert chosen.interval == "hour"


heights = st.decimals(min_value=0, max_value="1e12", allow_nan=False)


@given(
    st.lists(st.builds(lambda p: Bar("a<b", "w&w", tuple(p)), st.lists(heights, min_size=1, max_size=3)), max_size=40)
)
def test_a_chart_is_sound_xml_and_no_bar_leaves_it(data: list[Bar]) -> None:
    low, middle, top = ticks(data)
    assert low == 0 and middle * 2 == top and all(bar.total <= top for bar in data)
    drawn = ElementTree.fromstring(str(bars(data, title="<t>", axis=["0", "1", "2"])))
    rects = [each for each in drawn.iter("rect") if "bar" in each.attrib["class"]]
    assert len(rects) == sum(len(bar.parts) for bar in data)
    for rect in rects:
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0 and width >= 0 and height >= 0 and y >= -0.01
        assert x + width <= WIDTH + 0.2 and y + height <= HEIGHT


def test_the_texts_of_an_axis_of_tiny_amounts_stand_whole() -> None:
    axis = ["0", "0.0000003", "0.0000006"]
    drawn = ElementTree.fromstring(str(bars([Bar("", "", (Decimal("5.3E-7"),))], title="t", axis=axis)))
    (ends,) = {float(each.attrib["x"]) for each in drawn.iter("text") if each.text in axis}
    assert ends >= TICK_CHARACTER * len("0.0000006")
    assert all(float(line.attrib["x1"]) > ends for line in drawn.iter("line"))


def test_a_share_never_runs_over() -> None:
    for part, whole, width in ((1, 4, "25.00"), (9, 4, "100.00"), (-1, 4, "0.00"), (1, 0, "0.00")):
        assert f'class="fill" width="{width}"' in share(Decimal(part), Decimal(whole))
