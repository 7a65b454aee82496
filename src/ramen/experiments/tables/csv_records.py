"""The records of tables as CSV."""

import csv
import io
from collections.abc import Sequence

from ramen.experiments.tables.table import Table


def csv_text(tables: Sequence[Table]) -> str:
    """The records of tables of one kind, in the format of RFC 4180."""
    records = [record for table in tables for record in table.records]
    names = list(dict.fromkeys(name for record in records for name in record))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()
