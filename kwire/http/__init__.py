"""What a broker's HTTP port and the console behind it have in common: connections, and names of hosts."""
