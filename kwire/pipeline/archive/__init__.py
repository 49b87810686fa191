"""Topics as Parquet files, with a manifest for each commit that says which offsets are in which file."""
