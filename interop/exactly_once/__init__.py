"""Exactly once, seen from outside: a load of transactions, brokers that are killed under it, and a check.

Transactional producers write down what they begin and what they are told of its end (`ledger`), readers of
committed records write down what they see (`reading`), the broker is killed again and again (`load`), and in
the end `check` compares all of it with what is in the topic. `faults` names ways to break kwire that have to
be found, and `faulty_broker` breaks it.
"""
