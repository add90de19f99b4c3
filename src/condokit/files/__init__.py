"""Tables in files: read whole, streamed in batches, and written so that no half file is ever seen.

Text has no types, so they come from the whole file; `condokit.files.text` tells how.
"""

from condokit.files.formats import is_number, is_text
from condokit.files.reading import OBSERVED, Scan, read_table, scan_table, sha256
from condokit.files.text import MISSING
from condokit.files.writing import (
    Writer,
    check_target,
    open_writer,
    replace_h5ad,
    write_bytes,
    write_text,
)

__all__ = [
    "MISSING",
    "OBSERVED",
    "Scan",
    "Writer",
    "check_target",
    "is_number",
    "is_text",
    "open_writer",
    "read_table",
    "replace_h5ad",
    "scan_table",
    "sha256",
    "write_bytes",
    "write_text",
]
