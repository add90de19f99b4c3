"""Tables in files: read whole, streamed in batches, and written so that no half file is ever seen.

Text has no types, so they come from the whole file; `condokit.io.text` tells how.
"""

from condokit.io.formats import is_number, is_text
from condokit.io.h5ad import OBSERVED, replace_h5ad
from condokit.io.reading import Scan, read_table, scan_table, sha256
from condokit.io.text import MISSING
from condokit.io.writing import (
    Writer,
    check_target,
    open_writer,
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
