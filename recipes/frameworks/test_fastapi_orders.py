from fastapi.testclient import TestClient
from fastapi_orders import create_app

from kwire.testing import Broker


def test_order_is_written_and_its_state_is_read(kwire_broker: Broker) -> None:
    kwire_broker.produce("states", "shipped", key="1")
    with TestClient(create_app(kwire_broker.bootstrap_servers)) as client:
        assert client.post("/orders/2").status_code == 202
        assert [order.key for order in kwire_broker.records("orders")] == [b"2"]
        kwire_broker.wait_until(lambda: client.get("/orders/1").json() == "shipped")


def test_service_is_not_ready_while_the_broker_does_not_respond(kwire_broker: Broker) -> None:
    kwire_broker.create_topic("states")
    with TestClient(create_app(kwire_broker.bootstrap_servers)) as client:
        assert client.get("/ready").status_code == 200
        kwire_broker.hang()
        assert client.get("/ready").status_code == 503
        kwire_broker.resume()
        kwire_broker.wait_until(lambda: client.get("/ready").status_code == 200)


def test_service_is_ready_again_after_a_crash_of_the_broker(kwire_broker: Broker) -> None:
    kwire_broker.create_topic("states")
    with TestClient(create_app(kwire_broker.bootstrap_servers)) as client:
        kwire_broker.crash()
        assert client.get("/ready").status_code == 503
        kwire_broker.start()
        kwire_broker.wait_until(lambda: client.get("/ready").status_code == 200)
        kwire_broker.produce("states", "shipped", key="1")
        kwire_broker.wait_until(lambda: client.get("/orders/1").json() == "shipped")
