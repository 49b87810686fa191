"""A proxy in front of any Kafka cluster, which records the requests of clients and injects faults.

`Proxy` is the class for tests. `thread` starts and ends the event loop. `node` takes the place of a broker's
node in kwire's socket server, so that the interceptor of `kwire.testing.interceptor` records requests and
injects faults as it does in a broker. `upstream` has the connections to the cluster, one for each connection
of a client. `addresses` and `api_versions` change the responses that have to change.
"""

from kwire.testing.proxy.proxy import Proxy as Proxy
