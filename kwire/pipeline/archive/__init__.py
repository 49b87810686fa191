"""Archives: topics as Parquet files, with a manifest per commit that lists the offsets in each file."""
