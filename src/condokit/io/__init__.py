"""Tables in files: read whole, streamed in batches, and written so that no half file is ever seen.

Text has no types, so they come from the whole file; `condokit.io.text` tells how.
"""

from condokit.io.formats import is_number, is_text
from condokit.io.h5ad import OBSERVED, open_h5ad, replace_h5ad
from condokit.io.reading import files_of, read_table, scan_table, sha256
from condokit.io.writing import check_target, open_writer, spreadsheet, together, write_files

__all__ = ["OBSERVED", "check_target", "files_of", "is_number", "is_text", "open_h5ad"]
__all__ += ["open_writer", "read_table", "replace_h5ad", "scan_table", "sha256", "spreadsheet"]
__all__ += ["together", "write_files"]
