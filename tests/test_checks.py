"""Sentences that are made when they are read, and warnings that programs can read."""

import copy
import importlib
import pickle
import warnings

import numpy as np
import pytest
from problems import two_domains

from condokit import ConDoAdapter, IdentifiabilityWarning, LowOverlapWarning
from condokit.checks import (
    Note,
    Sentence,
    check_integer,
    check_number,
    naming,
    noting,
    quietly,
    said,
    warn,
)
from condokit.data.disclosure import MIN_CELL, hiding_few

TEXT = "Use {@map='shift'} for {names}: {n:rows} rows, {share:.1%} of {@`features`}, {value!r}."
FIELDS = {"names": "'a', 'b'", "n": 3, "share": 0.125, "value": "x"}
IN_PYTHON = "Use map='shift' for 'a', 'b': 3 rows, 12.5% of `features`, 'x'."
ON_COMMAND_LINE = "Use --map shift for 'a', 'b': 3 rows, 12.5% of --features, 'x'."


def command_line(argument):
    return {"map='shift'": "--map shift", "`features`": "--features"}[argument]


@pytest.fixture
def sentence():
    return Sentence(TEXT, FIELDS, "some-code")


def test_a_sentence_is_the_text_for_python(sentence):
    assert sentence == IN_PYTHON
    assert str(sentence) == IN_PYTHON
    assert f"{sentence}" == IN_PYTHON
    assert f"{sentence:>80}" == IN_PYTHON.rjust(80)
    assert str(ValueError(sentence)) == IN_PYTHON
    assert (sentence.template, sentence.fields, sentence.code) == (TEXT, FIELDS, "some-code")
    assert said(TEXT, **FIELDS) == IN_PYTHON
    assert said(TEXT, **FIELDS).code == ""


def test_arguments_are_called_as_the_reader_calls_them(sentence):
    assert sentence.in_words(command_line) == ON_COMMAND_LINE
    error = ValueError(sentence)
    with naming(command_line):
        assert str(sentence) == ON_COMMAND_LINE
        assert f"{sentence}" == ON_COMMAND_LINE
        assert f"{sentence:>80}" == ON_COMMAND_LINE.rjust(80)
        assert str(error) == ON_COMMAND_LINE
        with naming(str):
            assert str(sentence) == IN_PYTHON
    assert str(sentence) == IN_PYTHON
    assert str(error) == IN_PYTHON


def test_naming_ends_with_errors_too(sentence):
    with pytest.raises(ValueError, match="oops"), naming(command_line):
        raise ValueError("oops")
    assert str(sentence) == IN_PYTHON


@pytest.mark.parametrize("again", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy])
def test_sentences_and_their_errors_travel(sentence, again):
    same = again(sentence)
    assert isinstance(same, Sentence)
    assert (same, same.template, same.fields, same.code) == (
        sentence, sentence.template, sentence.fields, sentence.code
    )  # fmt: skip
    with naming(command_line):
        assert str(same) == ON_COMMAND_LINE
        assert str(again(ValueError(sentence))) == ON_COMMAND_LINE
    warning = again(IdentifiabilityWarning(sentence))
    assert (warning.code, warning.fields) == ("some-code", FIELDS)


def test_sentences_within_sentences_follow_the_reader(sentence):
    outer = said("Because: {why}", why=sentence)
    assert outer == f"Because: {IN_PYTHON}"
    with naming(command_line):
        assert str(outer) == f"Because: {ON_COMMAND_LINE}"
    assert "<5 rows" in hiding_few(outer)


def test_braces_and_percents_in_fields_are_only_text():
    assert said("column {name}", name="{n:rows} %s {@map}") == "column {n:rows} %s {@map}"
    assert said("a brace: {{x}}") == "a brace: {x}"


@pytest.mark.parametrize(
    ("count", "shown", "kept"),
    [
        (0, "0", "0"),
        (1, "1", "<5"),
        (4, "4", "<5"),
        (4.5, "4.5", "<5"),
        (5, "5", "5"),
        (np.int64(1234), "1234", "1234"),
        (np.float64(2.0), "2", "<5"),
    ],
)
def test_numbers_of_few_rows_are_hidden_in_files_only(count, shown, kept):
    assert MIN_CELL == 5
    sentence = said("{n:rows} rows and {n} beside", n=count)
    assert str(sentence).startswith(f"{shown} rows")
    assert hiding_few(sentence).startswith(f"{kept} rows")


def test_what_is_no_sentence_is_kept_as_it_is():
    assert hiding_few("3 rows") == "3 rows"


def test_files_speak_to_python_users(sentence):
    with naming(command_line):
        assert hiding_few(sentence) == IN_PYTHON.replace("3 rows", "<5 rows")


@pytest.mark.parametrize("category", [IdentifiabilityWarning, LowOverlapWarning])
def test_warnings_have_a_code_and_fields(category):
    with pytest.warns(category) as caught, noting() as notes:
        warn("some-code", TEXT, category, **FIELDS)
    [warning] = caught
    assert str(warning.message) == IN_PYTHON
    assert warning.message.code == "some-code"
    assert warning.message.fields == FIELDS
    assert isinstance(warning.message, UserWarning)
    [note] = notes
    assert note == Note(category.__name__, warning.message.args[0])
    assert note.sentence.code == "some-code"
    plain = category("made by hand")
    assert (plain.code, plain.fields) == ("", {})


def test_what_is_noted_may_say_less():
    with pytest.warns(LowOverlapWarning, match="^who: Anna$"), noting() as notes:
        warn("code", "who: {who}", LowOverlapWarning, noted="someone", who="Anna")
    assert [str(note.sentence) for note in notes] == ["someone"]


def test_notes_are_kept_of_warnings_that_nobody_sees():
    with noting() as notes, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warn("first", "one")
        with quietly():
            warn("second", "two")
    assert [note.sentence.code for note in notes] == ["first"]


def test_warnings_point_at_the_users_line():
    X_query, X_reference, Z_query, Z_reference = two_domains(np.random.default_rng(0))
    Z_query = Z_query.astype("U9")
    Z_query[:3] = "only new"
    with pytest.warns(LowOverlapWarning) as caught:
        ConDoAdapter().fit_pair(X_query, X_reference, Z_query, Z_reference)
    [warning] = caught
    assert warning.filename == __file__
    assert warning.message.code == "one-domain-only"
    assert warning.message.fields["n_query"] == 3
    assert warning.message.fields["n_values"] == 1


def test_fits_warn_with_codes():
    X = np.random.default_rng(0).normal(size=(60, 2))
    X = np.column_stack([X, np.ones(60)])
    with pytest.warns(IdentifiabilityWarning) as caught:
        ConDoAdapter().fit_pair(X[:30], X[30:])
    assert [warning.message.code for warning in caught] == ["constant-features"]
    with pytest.warns(IdentifiabilityWarning) as caught:
        ConDoAdapter("affine", divergence="reverse-kl").fit_pair(X[:4], X[30:])
    fields = {warning.message.code: warning.message.fields for warning in caught}
    assert set(fields) == {"few-rows-for-matrix", "constant-features", "few-rows"}
    fields = fields["few-rows-for-matrix"]
    assert (fields["n_query"], fields["n_reference"], fields["d"]) == (4, 30, 3)


def test_checks_of_numbers_name_the_argument_as_the_reader_does():
    for check, value in ((check_number, "2"), (check_number, True), (check_integer, 2.0)):
        with pytest.raises(ValueError, match="'argument' must be a .*number") as error:
            check("argument", value, 3)
        with naming(lambda name: f"--{name[1:-1]}"):
            assert str(error.value).startswith("--argument must be a ")
    check_number("argument", np.float32(3), 3, 4)
    check_integer("argument", np.int8(3), 3)


@pytest.mark.parametrize("module", ["condokit", "condokit.divergences", "condokit.maps.families"])
def test_a_name_that_never_was_is_no_attribute(module):
    assert not hasattr(importlib.import_module(module), "Nowhere")
    with pytest.raises(ImportError, match="cannot import name 'Nowhere'"):
        exec(f"from {module} import Nowhere")
