"""Reports of jobs: pages of HTML, each one file, with its plots inside and nothing from the network."""
