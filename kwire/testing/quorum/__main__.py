from kwire.testing.quorum.history import History
from kwire.testing.simulation.run import main

if __name__ == "__main__":
    raise SystemExit(main(History, "kwire.testing.quorum"))
