"""The scenarios, one noun a file: functions from a broker to what was observed."""
