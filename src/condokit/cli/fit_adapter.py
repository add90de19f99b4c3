"""The fit of the command line: from options to a map that knows its making, and its report."""

import csv
import hashlib
import io
import shlex
import sys
import warnings
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from click import UsageError

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.checks import listing, quietly
from condokit.cli.options import LABELS
from condokit.cli.outputs import NotMet, features_of, tell_warnings
from condokit.cli.sites import are_statistics, read_sites
from condokit.cli.tables import IN_MEMORY, file_labels, open_source, read_data, reliabilities, split
from condokit.data.disclosure import hidden_overlap
from condokit.data.records import plain
from condokit.data.study import Study
from condokit.io import files_of, sha256, spreadsheet
from condokit.io.progress import progress
from condokit.maps.families import MAPS, LowRank
from condokit.maps.provenance import fingerprint
from condokit.statistics.domains import as_domains, cells_of, merge_parts

_OUTPUTS = ("-o", "--output", "--report", "--adapted", "--table", "--figures", "--figure-format")
_ENOUGH = {"better": ["better"], "not worse": ["better", "no change needed", "cannot tell"]}
_NO_MATTER = ("--force", "--json", "-v", "--verbose", "-q", "--quiet")


class FitCommand:
    """An adapter as a command fits it, with its data, what was warned of, and how it was made."""

    def __init__(self, arguments: list[str], options: dict[str, Any]) -> None:
        self.arguments, seed = arguments, options["seed"]
        self.watched = options["verbose"] or (sys.stderr.isatty() and not options["quiet"])
        label = options["reference_label"]
        self.has_rows = not are_statistics(*(options[n] for n in ("new", "more", "reference")))
        if self.has_rows:
            self.data: Any = read_data(**options)
        else:
            self.data, label = read_sites(options)
        self.column = options["domain"] or options["batch"]
        self.adapter: Any = _adapter(options, self.watched)
        self.limits = _limits(options, self.data)
        self.is_study = bool(options["batch"] is not None or options["more"])
        if not self.has_rows:
            self.is_study = len({label for part in self.data for label in part.labels}) > 2
        if self.is_study:
            unreachable = "keep" if options["keep_unreachable"] else "raise"
            self.adapter = BatchAdapter(self.adapter, reference=label, unreachable=unreachable)
        elif not self.has_rows:
            self.adapter.set_params(reference=label)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.domains: Study = self._fitted(label)
            if n_resamples := options["n_resamples"]:
                from condokit.trust.bootstrap import bootstrap

                how = {"n_resamples": n_resamples, "verbose": self.watched, "random_state": seed}
                bootstrap(self.adapter, self.data, **how)
        self.warnings = tell_warnings(caught)
        self.keep_names(options["new"], *options["more"], options["reference"])

    def keep_names(self, *paths: str | None) -> None:
        """Note the names and the content of files; folders are nobody's business."""
        self.names: dict[str, str] = {}
        for path in paths:
            if path is not None and path != "-":
                same = sum(Path(other).name == Path(path).name for other in self.names)
                name, dot, kind = Path(path).name.partition(".")
                self.names[path] = f"{name} ({same + 1}){dot}{kind}" if same else Path(path).name
        self.hashes = {self.names[path]: _content(path) for path in self.names}

    def _fitted(self, label: Any) -> Study:
        """Fit the adapter to the data, and return these as domains."""
        if not self.has_rows:
            stats = merge_parts(self.data)
            self.adapter.fit_statistics(stats)
            with quietly():
                return cells_of(stats) if self.is_study else as_domains(stats, label)
        if self.is_study:
            self.adapter.fit_study(self.data)
        else:
            self.adapter.fit_domains(self.data)
        return self.data

    def command(self, *written: str) -> list[str]:
        """Return the command with plain names for what it writes, which do not change the map."""
        kept, skip = ["condokit"], False
        for argument in self.arguments:
            name, sign, _ = argument.partition("=")
            attached = argument.startswith("-o") and argument != "-o"
            if not (skip or name in _OUTPUTS or attached or argument in _NO_MATTER):
                for path, plain_name in self.names.items():
                    if argument in (path, f"--reference={path}"):
                        argument = argument.removesuffix(path) + plain_name
                        break
                kept.append(argument)
            skip = name in _OUTPUTS and not sign and not skip
        return [*kept, "-o", *written]

    def origin(self) -> dict[str, Any]:
        """Return the command, files and rows that a map comes from."""
        known = {"data": fingerprint(self.domains)} if self.has_rows else {}
        return known | {
            "command": self.command("map.json"),
            "files": [
                {"name": name, "size" if " " in found else "sha256": found}
                for name, found in self.hashes.items()
            ],
        }

    def map_file(self) -> tuple[Any, bytes]:
        """Return the map, which knows the command, files and rows it comes from, and its file."""
        content = io.BytesIO()
        if self.is_study:
            facts = dict(self.adapter.provenance_) | self.origin()
            facts |= {"column": self.column} if self.column else {}
            self.adapter.provenance_ = facts
            self.adapter.save(content)
            return self.adapter, content.getvalue()
        affine = self.adapter.map_
        facts = dict(affine.provenance or {}) | self.origin()
        facts["domains"] = facts["domains"] | ({"column": self.column} if self.column else {})
        affine = affine.with_origin(affine.fitted_on, facts)
        affine.save(content)
        return affine, content.getvalue()

    @cached_property
    def judged(self) -> tuple[Any, Any]:
        """What is known of the data before the map, and of what it leaves."""
        from condokit.report.contents import judged

        with progress("", shown=self.watched, doing="Evaluating the map"):
            return judged(self.adapter, self.domains, **self.limits)

    def account(self, *written: str, made: bytes = b"") -> dict[str, Any]:
        """Return the record of the report, which knows the file of the map that it goes with."""
        from condokit.report.contents import build

        found = dict(zip(("assessment", "evaluation"), self.judged))
        found |= {"command": shlex.join(self.command(*written)), "inputs": self.hashes}
        record = build(self.adapter, self.domains, **found)
        if made:
            record["reproduce"]["map_sha256"] = hashlib.sha256(made).hexdigest()
        return record

    def verdict(self) -> dict[str, Any]:
        """Return whether the map can be trusted: as a word of `evaluate`, as a sentence, in full.

        The last is what `evaluation` has for machines, and `text` for people.
        """
        from condokit.report.pair import verdict
        from condokit.report.pieces import capital
        from condokit.trust.evaluation import WITHIN

        nothing, why = "not evaluated", "statistics have no rows on which a map could be judged."
        try:
            found = self.judged[1] if self.has_rows else None
            if self.is_study and found:
                word, sentence = found.verdict, found.parts()[0][1]
                return _verdict_record(word, sentence, found, repr(found))
            if self.has_rows:
                word, sentence = (verdict(*self.judged)[name] for name in ("word", "sentence"))
                sentence = f"{capital(word)}: {sentence[:1].lower()}{sentence[1:]}"
                limits = found.tolerances if found else ()
                text = f"{sentence}\n\n{WITHIN}\n{limits}" if limits else sentence
                return _verdict_record(word, sentence, found, text)
        except (ValueError, ArithmeticError) as error:  # the map is made, and may be used
            why = str(error)
        return _verdict_record(nothing, f"Not evaluated: {why}")

    def check_required(self, wanted: str | None) -> None:
        """Refuse a map whose verdict is not the one that is asked for."""
        reasons, is_met = self.verdict()["text"] if wanted else "", True
        if wanted == "within limits":
            if not self.limits:
                raise UsageError("--require 'within limits' needs --tolerance.")
            rows = self.judged[1].tolerances.rows() if self.judged[1] else ()
            within = {row["feature"]: row["within"] for row in rows}
            missed = listing([name for name, word in within.items() if word != "yes"])
            is_met = bool(within) and not missed
            reasons = f"Not known to be within limits: {missed}. {reasons}" if missed else reasons
        elif wanted is not None:
            is_met = self.verdict()["verdict"] in _ENOUGH[wanted]
        if not is_met:
            raise NotMet(f"--require {shlex.quote(str(wanted))}: nothing is written. {reasons}")

    def pages(
        self, record: dict[str, Any], report: str | None, table: str | None
    ) -> dict[str, bytes]:
        """Return the report of a record, and the table of all its features, by path."""
        from condokit.report import render

        made = {}
        if report is not None:
            made[report] = render(record).encode()
        if table is not None:
            made[table] = spreadsheet(record["features"])
        return made

    def rows(self) -> dict[str, Any]:
        """Return the numbers of rows compared, as far as they may be told."""
        return dict(self.adapter.map_.provenance or {})["rows"]

    def record(self) -> dict[str, Any]:
        """Return what was fitted, for machines."""
        if self.is_study:
            known = plain(dict(self.adapter.provenance_))
            return {"features": self.domains.tables[0].labels, **known, "warnings": self.warnings}
        adapter, facts, rows = self.adapter, self.adapter.report_, self.rows()
        is_query, counts = self.domains.is_query, self.domains.kept() * self.domains.rows_behind
        totals = [float(counts[side].sum()) for side in (is_query, ~is_query)]
        return {
            "kind": adapter.map_.kind,
            "n_features": adapter.map_.n_features_in_,
            "features": self.domains.tables[0].labels,
            "columns_left_alone": self.domains.left,
            "divergence": str(adapter.divergence_),
            "chosen": facts.get("chosen_map", str(adapter.map)),
            "rows_query": rows["query"],
            "rows_reference": rows["reference"],
            "overlap": hidden_overlap(plain(adapter.overlap_), *totals),
            "warnings": self.warnings,
        }

    def summary(self) -> str:
        """Return what was fitted, in a sentence."""
        if self.is_study:
            return str(self.adapter.report_)
        affine, facts = self.adapter.map_, self.adapter.report_
        n_rows = {k: n if isinstance(n, str) else f"{n:,.0f}" for k, n in self.rows().items()}
        is_chosen = "chosen_map" in facts
        chosen = ", an average of kinds that predict rows well and simply," if is_chosen else ""
        return (
            f"A {affine.kind} map of {features_of(affine)}{chosen} "
            f"from {n_rows['query']} query and {n_rows['reference']} reference "
            f"rows; overlap of the confounders {self.adapter.overlap_.coefficient:.2f}."
        )


class Added(FitCommand):
    """The maps of a study, to which that of a new batch is added."""

    def __init__(self, arguments: list[str], adapter: Any, options: dict[str, Any]) -> None:
        self.adapter, self.arguments, self.watched = adapter, arguments, False
        self.has_rows, self.is_study = True, True
        self.column = dict(getattr(adapter, "provenance_", {})).get("column")
        read: dict[str, Any] = dict.fromkeys(("reference", "domain", *LABELS[1:]))
        read |= {"keep_unreachable": False, "reliability": (), **self._roles(options)}
        study = read_data(**options, **read)
        known = {str(label): label for label in adapter.maps_}
        labels = tuple(known.get(str(label), label) for label in study.labels)
        self.data = self.domains = replace(study, labels=labels)
        self.limits = _limits(options, study)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapter.add_batch(self.data, batch=None)
        self.warnings = tell_warnings(caught)
        self.keep_names(options["map_file"], options["new"], *options["more"])

    @cached_property
    def judged(self) -> tuple[Any, Any]:
        """What is known of what the maps leave."""
        from condokit.trust.evaluate import evaluate

        return None, evaluate(self.adapter, self.data, **self.limits)

    def verdict(self) -> dict[str, Any]:
        """Return whether the new map can be trusted; of the others, other rows tell."""
        from condokit.trust.evaluation import WITHIN, error_in_words

        label = self.adapter.provenance_["additions"][-1]["label"]
        try:
            rows = list(self.judged[1].batches.rows())
        except (ValueError, ArithmeticError) as error:
            return _verdict_record("not evaluated", f"{label}: not evaluated, {error}")
        [row] = [row for row in rows if plain(row["batch"]) == label]
        line = f"{label}: {row['verdict']}."
        if row["error_before"] is not None:
            before, after = (error_in_words(row, when) for when in ("before", "after"))
            line += f" A value is systematically off by about {before} as recorded and {after} "
            line += "after the map."
        line, limits = f"{line} {row['doubts']}".rstrip(), self.judged[1].tolerances
        told = [k for k, row in enumerate(limits.rows()) if plain(row["batch"]) == label]
        text = f"{line}\n\n{WITHIN}\n{limits.take(told)!r}" if told else line
        return _verdict_record(row["verdict"], line, self.judged[1], text)

    def _roles(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of `fit` that `add` implies: labels of the files, and the features."""
        names, maps = getattr(self.adapter, "feature_names_in_", None), self.adapter
        if getattr(maps, "kinds", None) != ("batches",) or names is None:
            raise UsageError("add needs a map file of many batches with names of features.")
        given = tuple(options["known_label"])
        if options["batch"] is None and not options["more"]:
            raise UsageError("Give tables of batches that have a map with --known, or --batch.")
        labels: tuple[str, ...] = ()
        if options["batch"] is not None:
            if given:
                raise UsageError("--known-label does not go with --batch, the column of labels.")
            self._check_labels({options["new"]: options["label"]}, options)
        else:
            others = given or file_labels(options["more"], {"labels": ()})
            own = options["label"] or file_labels([options["new"]], {"labels": ()})[0]
            labels = (own, *others)
            self._check_labels(dict(zip((options["new"], *options["more"]), labels)), options)
            there = [str(label) for label in maps.maps_]
            if own in there:
                raise UsageError(f"--label {own}: {options['map_file']} has its map already.")
            if strange := [label for label in others if label not in there]:
                text = f"{listing(strange)} has no map; known are {listing(there)}. Give the batch "
                raise UsageError(f"{text}of each --known table with --known-label.")
        return {"labels": labels, "features": tuple(names), "side": options["label"]}

    def _check_labels(self, labels: dict[str, str], options: dict[str, Any]) -> None:
        """Refuse tables whose own column of batches says something else than their labels."""
        column = options["batch"] or self.column
        advice = f"give --batch {column}" if options["batch"] is None else "leave out --label"
        for path, label in labels.items() if column is not None else ():
            source = None if path == "-" or label is None else open_source(path, options, column)
            if source is not None and column in source.names:
                found = dict.fromkeys(map(str, source.labels()))
                if [*found] != [label]:
                    text = f"{path} has rows of {listing(found, 12)} in its column {column!r}"
                    raise UsageError(f"{text}, not of {label!r} alone: {advice}.")

    def origin(self) -> dict[str, Any]:
        """Return the command and files of the new batch, beside those of the maps before."""
        *before, last = self.adapter.provenance_["additions"]
        made = super().origin()
        return {"additions": [*before, last | {name: made[name] for name in ("command", "files")}]}


def _adapter(options: dict[str, Any], watched: bool) -> ConDoAdapter:
    """Return an adapter with the settings that options give."""
    same = {name: options[name] for name in ("missing", "warn_overlap", "min_overlap")}
    same |= {"random_state": options["seed"], "verbose": watched, "n_jobs": -1}
    if options["method"] != "condokit":
        return _of_the_paper(options, same)
    is_plain = options["shrinkage"].lower() == "none"
    return ConDoAdapter(
        _family(options["map_"], options["links"]),
        divergence=options["divergence"],
        shrinkage=None if is_plain else _number("--shrinkage", options["shrinkage"], "auto"),
        reliability=reliabilities(options["reliability"]) or None,
        controls=split("--controls", options["controls"]) or None,
        **same,
    )


def _of_the_paper(options: dict[str, Any], same: dict[str, Any]) -> ConDoAdapter:
    """Return the paper's method, which refuses what it has not."""
    from condokit.paper import ConDo

    method = options["method"]
    others = {"divergence": ("auto",), "shrinkage": ("auto", "none")}
    given = [name for name, words in others.items() if options[name].lower() not in words]
    given += [name for name in ("links", "controls", "reliability") if options[name]]
    if given:
        name = {"links": "link"}.get(given[0], given[0])
        raise UsageError(f"--{name} cannot be used with --method {method}, that of the paper.")
    return ConDo(method.removeprefix("condo-"), options["map_"], **same)


def _verdict_record(word: str, sentence: str, found: Any = None, text: str = "") -> dict[str, Any]:
    """Return a verdict with what it rests on, and as text for people."""
    known = {"verdict": word, "sentence": sentence, "text": text or sentence}
    if found is None:
        return known
    from condokit.report.pieces import JUDGED, judgement

    if "batches" in (rows := vars(found)):
        facts = {"batches": list(rows["batches"].rows())}
    else:
        facts = judgement(found)
        facts = {name: facts[name] for name in (*JUDGED, "counted", "leave_alone", "doubts")}
    return known | {"evaluation": plain({**facts, "tolerances": list(found.tolerances.rows())})}


def _content(path: str) -> str:
    """Return the hash of a file; of several, or a large one, how many there are and their size."""
    files = files_of(path)
    size = sum(Path(file).stat().st_size for file in files)
    if len(files) == 1 and size <= IN_MEMORY:
        return sha256(path)
    return f"{len(files)} files, {size} bytes"


def _limits(options: dict[str, Any], data: Any) -> dict[str, Any]:
    """Return allowable errors and imprecisions of features of the data: region=0.05."""
    found: dict[str, dict[str, float]] = {}
    for name in ("tolerance", "imprecision"):
        for text in options.get(name) or ():
            feature, sign, limit = text.rpartition("=")
            if not sign and name == "tolerance" and Path(text).is_file():
                for limits, values in _limits_of_table(text).items():
                    found.setdefault(limits, {}).update(values)
            elif not sign:
                raise UsageError(f"--{name} {text}: write FEATURE=NUMBER, or name a table.")
            else:
                found.setdefault(name, {})[feature] = _number(f"--{name}", limit)
    if found:  # before anything is fitted
        from condokit.trust.by_feature import check_tolerance

        check_tolerance(found.get("tolerance"), found.get("imprecision"), data.tables[0].labels)
    return found


def _limits_of_table(path: str) -> dict[str, dict[str, float]]:
    """Return the limits of a CSV file with columns feature, tolerance and maybe imprecision."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"feature", "tolerance"} <= {*rows[0]}:
        text = f"--tolerance {path}: a table needs the columns feature and tolerance"
        raise UsageError(f"{text}. Got {listing([*rows[0]] if rows else [])}.")
    return {
        name: {row["feature"]: _number(path, row[name]) for row in rows if row.get(name)}
        for name in ("tolerance", "imprecision")
    }


def _family(name: str, links: tuple[str, ...]) -> Any:
    """Return a map by name, with its rank or links."""
    name, _, rank = name.partition(":")
    if (not links and not rank) or name not in (*MAPS, "auto"):
        return name
    found: dict[str, Any] = {}
    for link in links:
        feature, sign, kind = link.rpartition("=")
        if not sign:
            raise UsageError(f"--link {link}: write FEATURE=log, FEATURE=logit or a power.")
        found[feature] = _number("--link", kind, "log", "logit")
    if name == "low-rank":
        if rank and not rank.isdecimal():
            raise UsageError(f"--map {name}:{rank}: the rank must be a whole number.")
        return LowRank(int(rank or 2), links=found or None)
    if rank or name == "auto":
        raise UsageError(f"--map {name}: links and ranks do not go with it.")
    return MAPS[name](links=found)


def _number(option: str, value: str, *words: str) -> Any:
    """Return the number that an option gives, or one of some words."""
    try:
        return value if value in words else float(value)
    except ValueError:
        raise UsageError(f"{option}: {value!r} is not a number.") from None
