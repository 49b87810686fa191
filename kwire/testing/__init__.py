"""What users import in their own tests: virtual time, faults, simulation."""
