from simulation.cluster.history import History
from simulation.storage.run import main

if __name__ == "__main__":
    raise SystemExit(main(History, "simulation.cluster"))
