"""Files of labels that grow while images are classified: CSV, JSON lines, Parquet."""
