"""HTML reports of the jobs: one file each, with embedded plots and without network access."""
