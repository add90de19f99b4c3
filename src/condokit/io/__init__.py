"""Tables in files: read whole, streamed in batches, and written so that no half file is ever seen.

Text has no types, so they come from the whole file; `condokit.io.text` tells how.
"""

from condokit.io.formats import is_number as is_number
from condokit.io.formats import is_text as is_text
from condokit.io.h5ad import OBSERVED as OBSERVED
from condokit.io.h5ad import open_h5ad as open_h5ad
from condokit.io.h5ad import replace_h5ad as replace_h5ad
from condokit.io.reading import files_of as files_of
from condokit.io.reading import read_table as read_table
from condokit.io.reading import scan_table as scan_table
from condokit.io.reading import sha256 as sha256
from condokit.io.writing import check_target as check_target
from condokit.io.writing import open_writer as open_writer
from condokit.io.writing import spreadsheet as spreadsheet
from condokit.io.writing import together as together
from condokit.io.writing import write_files as write_files
