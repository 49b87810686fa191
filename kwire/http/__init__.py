"""Common parts of the broker's HTTP port and the web console: connections and host names."""
