"""Progress is shown where a person watches, and leaves nothing behind."""

from condokit.io.progress import progress


def test_progress_goes_to_the_error_stream_where_it_is_asked_for(capsys):
    with progress("rows", 10, shown=True) as advance:
        advance(4)
        advance(10, "nearly done")
    out = capsys.readouterr()
    assert out.out == ""
    assert "rows" in out.err
    assert out.err.endswith("\r")


def test_nothing_is_shown_in_a_pipe(capsys):
    with progress("rows") as advance:
        advance(4)
    assert capsys.readouterr() == ("", "")
