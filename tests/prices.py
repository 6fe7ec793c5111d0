"""Write `sessile/core/price_table.py` from the installed package `genai-prices`: `python tests/prices.py`.

Raise `VERSION` in `storage/catalog.py` afterwards: costs are counted again.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from genai_prices import data, types
from genai_prices.data_snapshot import get_snapshot

TARGET = Path(__file__).parents[1] / "src" / "sessile" / "core" / "price_table.py"

_PARTS = {
    "input_mtok": "i",
    "output_mtok": "o",
    "cache_read_mtok": "r",
    "cache_write_mtok": "w",
    "cache_write_1h_mtok": "h",
    "requests_kcount": "q",
}


def text() -> str:
    """Return the module."""
    providers = get_snapshot().providers
    index = [
        [p.id, _clause(p.provider_match), _clause(p.model_match), p.fallback_model_providers or []] for p in providers
    ]
    models = {p.id: [_model(m) for m in p.models] for p in providers}
    lines = [f'    "{name}": r"""{_list(listed)}""",' for name, listed in models.items()]
    return "\n".join(
        (
            '"""Prices and context windows of models, from the package `genai-prices` (MIT licence); `core.prices` reads them.',
            "",
            "Written by `python tests/prices.py`. Do not edit.",
            '"""',
            "",
            f'SOURCE = "genai-prices {importlib.metadata.version("genai-prices")}"',
            f'DATE = "{newest()}"  # the newest date in the table',
            f'PROVIDERS = r"""{_list(index)}"""',
            "MODELS = {",
            *lines,
            "}",
            "",
        )
    )


def newest() -> str:
    """Return the newest date that the table names; dates in the future are announcements."""
    today = str(datetime.datetime.now(datetime.UTC).date())
    named = re.findall(r"\b20\d\d-[01]\d-[0-3]\d\b", Path(data.__file__).read_text())
    started = [
        f"{int(y):04d}-{int(m):02d}-{int(d):02d}"
        for y, m, d in re.findall(r"datetime\.date\((\d+), (\d+), (\d+)\)", Path(data.__file__).read_text())
    ]
    return str(max(date for date in (*named, *started) if date <= today))


def _json(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    assert '"""' not in written
    return written


def _list(values: list[Any]) -> str:
    """Return a list with one value a line, so that changes can be read."""
    return "[" + ",\n".join(map(_json, values)) + "]"


def _clause(clause: Any) -> Any:
    match clause:
        case None:
            return None
        case types.ClauseOr():
            return ["|", *map(_clause, clause.or_)]
        case types.ClauseAnd():
            return ["&", *map(_clause, clause.and_)]
        case types.ClauseEquals():
            return ["=", clause.equals.lower()]
        case types.ClauseStartsWith():
            return ["^", clause.starts_with.lower()]
        case types.ClauseEndsWith():
            return ["$", clause.ends_with.lower()]
        case types.ClauseContains():
            return ["~", clause.contains.lower()]
        case types.ClauseRegex():
            return ["r", clause.regex]
    raise TypeError(clause)


def _model(model: types.ModelInfo) -> list[Any]:
    prices = model.prices if isinstance(model.prices, list) else [types.ConditionalPrice(None, prices=model.prices)]
    return [
        _clause(model.match),
        model.context_window,
        [[_when(each.constraint), _rates(each.prices)] for each in prices],
    ]


def _when(constraint: Any) -> Any:
    match constraint:
        case None:
            return None
        case types.StartDateConstraint():
            return str(constraint.start_date)
        case types.TimeOfDateConstraint():
            return [_minutes(constraint.start_time), _minutes(constraint.end_time)]
    raise TypeError(constraint)


def _minutes(time: datetime.time) -> int:
    at = datetime.datetime.combine(datetime.date(2000, 1, 2), time)
    at = at.astimezone(datetime.UTC) if at.tzinfo else at
    return at.hour * 60 + at.minute


def _rates(prices: types.ModelPrice) -> dict[str, Any]:
    return {short: _rate(value) for name, short in _PARTS.items() if (value := prices.__dict__.get(name)) is not None}


def _rate(value: Decimal | types.TieredPrices) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return [float(value.base), *([tier.start, float(tier.price)] for tier in value.tiers)]


if __name__ == "__main__":
    TARGET.write_text(text())
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes, {newest()}")
