"""A black-box test of exactly-once delivery: transactional load, broker kills, and a checker.

Transactional producers log each transaction and its outcome (`ledger`). Readers of committed records log the
records that they read (`reading`). The broker is killed repeatedly during this load (`load`). Then `checker`
compares the logs with the content of the topic. To test the checker, `faulty_broker` plants faults in kwire.
`faults` lists these faults, and the checker must find each of them.
"""
