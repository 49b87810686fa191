"""Keep the total of each customer's orders in a state store, and write each new total to a topic."""

import sys

from quixstreams import Application, State


def add_to_total(order: dict[str, int], state: State) -> int:
    total: int = state.get("total", 0) + order["amount"]
    state.set("total", total)
    return total


def totals(servers: str, state_dir: str) -> Application:
    app = Application(
        servers,
        consumer_group="totals",
        auto_offset_reset="earliest",
        state_dir=state_dir,
        processing_guarantee="exactly-once",
    )
    orders = app.dataframe(app.topic("orders", value_deserializer="json"))
    orders.apply(add_to_total, stateful=True).to_topic(app.topic("totals", value_serializer="json"))
    return app


if __name__ == "__main__":
    totals(sys.argv[1], sys.argv[2]).run()
