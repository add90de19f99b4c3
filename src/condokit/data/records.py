"""Records of results: tables and findings that print well in terminals and notebooks."""

import dataclasses
import html
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from condokit.checks import Array, Sentence

Part = tuple[str, Any]
LEVELS = ("stop", "care", "note")  # of findings, the most serious first
_PRINTED_ROWS = 20  # rows of a table that are printed, at most
_STYLE = (
    "<style>.condokit{font-family:system-ui,sans-serif;max-width:60em}"
    ".condokit table{border-collapse:collapse;margin:.3em 0 1em}"
    ".condokit th,.condokit td{padding:.15em .7em;border-bottom:1px solid #8884;text-align:right;"
    "font-variant-numeric:tabular-nums}"
    ".condokit th:first-child,.condokit td:first-child{text-align:left}"
    ".condokit h4{margin:1em 0 .2em}.condokit p,.condokit ul{margin:.3em 0}</style>"
)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A small table: named columns of one length; None where something is not known or shown.

    Examples
    --------
    >>> Sheet({"sex": ["F", "M"], "share": [0.25, 0.75]})
    sex  share
      F   0.25
      M   0.75
    """

    columns: dict[str, Any]  #: Values by column.

    def __post_init__(self) -> None:
        given = self.columns.items()
        lists = {n: v.tolist() if hasattr(v, "tolist") else list(v) for n, v in given}
        object.__setattr__(self, "columns", lists)

    @classmethod
    def of_rows(cls, rows: Iterable[Any], names: Sequence[str] = ()) -> "Sheet":
        """Return the table of rows: dicts with the same names, or the values of these names."""
        rows = [row if isinstance(row, dict) else dict(zip(names, row)) for row in rows]
        return cls({name: [row[name] for row in rows] for name in (rows[0] if rows else names)})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row as a dict.

        Yields
        ------
        dict
            The values of a row by column.
        """
        for values in zip(*self.columns.values()):
            yield dict(zip(self.columns, values))

    def take(self, places: Sequence[int] | Array) -> "Sheet":
        """Return some of the rows, in this order.

        Parameters
        ----------
        places : sequence of int
            Row numbers.

        Returns
        -------
        Sheet
            These rows.
        """
        chosen = [int(i) for i in places]
        return Sheet({name: [v[i] for i in chosen] for name, v in self.columns.items()})

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as plain lists, ready for JSON or a data frame.

        Returns
        -------
        dict of str to list
            Values by column.
        """
        return {str(name): plain(values) for name, values in self.columns.items()}

    def to_frame(self, backend: Literal["pandas", "polars", "pyarrow"] = "pandas") -> Any:
        """Return a data frame.

        Parameters
        ----------
        backend : {"pandas", "polars", "pyarrow"}, default="pandas"
            Whose data frame.

        Returns
        -------
        data frame
            The table.
        """
        import narwhals.stable.v2 as nw

        columns = self.to_dict()
        for name, values in columns.items():
            kinds = {type(v) for v in values} - {type(None)}
            if len(kinds) > 1 or kinds & {list, dict}:
                columns[name] = [None if v is None else str(v) for v in values]
        return nw.from_dict(columns, backend=backend).to_native()

    def _cells(self) -> list[list[str]]:
        """Return the rows that are printed, names first."""
        given = self.columns.items()
        columns = [[str(n), *map(show, values[:_PRINTED_ROWS])] for n, values in given]
        return [[" ".join(cell.splitlines()) for cell in row] for row in zip(*columns)]

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
        if len(self) > _PRINTED_ROWS:
            lines.append(f"... and {len(self) - _PRINTED_ROWS} more rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *body = self._cells() or [[]]
        names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
        lines = "".join(f"<tr>{row}</tr>" for row in rows)
        more = len(self) - _PRINTED_ROWS
        note = f"<p>... and {more} more rows</p>" if more > 0 else ""
        return f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>{note}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something a reader should know."""

    level: Literal["stop", "care", "note"]  #: How serious it is.
    text: str  #: What was found.
    advice: str = ""  #: What to do about it.

    def __str__(self) -> str:  # in an f-string a Sentence speaks to the reader
        mark = {"stop": "not possible: ", "care": "care: ", "note": ""}[self.level]
        return f"{mark}{self.text}" + (f" {self.advice}" if self.advice else "")


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order of how serious they are."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


class Record:
    """A frozen dataclass that prints in the same way in terminals, notebooks and files."""

    def parts(self) -> list[Part]:
        """Return headings with text, a list or a Sheet, which are not shown if they are empty."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, text, lists and dicts, ready for JSON.

        Returns
        -------
        dict
            Values by field.
        """
        assert dataclasses.is_dataclass(self)
        fields = dataclasses.fields(self)
        public = [f.name for f in fields if not f.metadata.get("private")]  # no rows of subjects
        return {name: plain(getattr(self, name)) for name in public}

    def __repr__(self) -> str:
        blocks = []
        for heading, content in self.parts():
            text = str(content)
            if isinstance(content, list):
                # lines that go with the one before are indented already
                lines = map(str, content)
                text = "\n".join(x if x.startswith(" ") else f"- {x}" for x in lines)
            if len(content):
                blocks.append(f"{heading}\n{text}" if heading else text)
        return "\n\n".join(blocks)

    def _repr_html_(self) -> str:
        blocks = []
        for heading, content in self.parts():
            text = f"<p>{html.escape(str(content))}</p>"
            if isinstance(content, Sheet):
                text = content._repr_html_()
            elif isinstance(content, list):
                items = "".join(f"<li>{html.escape(str(item))}</li>" for item in content)
                text = f"<ul>{items}</ul>"
            if len(content):
                blocks.append(f"<h4>{html.escape(heading)}</h4>{text}" if heading else text)
        return f'{_STYLE}<div class="condokit">{"".join(blocks)}</div>'


def show(value: Any) -> str:
    """Return a value as a reader wants to see it."""
    if isinstance(value, float | np.floating):
        number = float(value)
        if not np.isfinite(number):
            return "-"
        if abs(number) < 1e-12:
            return "0"
        whole = number.is_integer() and 1 < abs(number) < 1e15
        return f"{number:.0f}" if whole else f"{number:.3g}"
    return "-" if value is None else str(value)


def plain(value: Any) -> Any:
    """Turn records into lists, dicts, text and numbers; NaN and infinity into None."""
    if type(value) in (float, str, int, bool):  # nearly all items of large tables
        return value if type(value) is not float or math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in (value.tolist() if hasattr(value, "tolist") else value)]
    if isinstance(value, Sentence):
        return value.in_words()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
