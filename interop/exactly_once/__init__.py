"""A black-box test of exactly-once delivery: transactional load, broker kills, and a checker.

Transactional producers log each transaction and its outcome (`ledger`). Readers of committed records log what
they read (`reading`). The broker is killed repeatedly (`load`). Then `checker` compares the logs with the
topic's content. `faults` lists faults of kwire that the checker must find, and `faulty_broker` plants them.
"""
