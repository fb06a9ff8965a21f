"""The wire counter against the formulas of the verbs."""

import doctest

import numpy as np

from hpcpar.debug import Row, counter, wire


def test_counts_what_the_formulas_say(ranks):
    def body(group):
        p = group.size
        with wire(group) as counted:
            group.all_reduce(np.ones(12 * p, np.float32))
            group.all_gather(np.ones(5), sizes="equal")
            group.all_gather(np.ones(3), sizes="equal")
        by_verb = counted.by_verb()
        reduced = 2 * (p - 1) * 12 * 4
        assert by_verb["all_reduce"][:2] == (reduced, reduced)
        assert by_verb["all_gather"][:2] == ((p - 1) * 64, (p - 1) * 64)
        assert counted.sent == counted.received == reduced + (p - 1) * 64
        assert counted.messages == (p - 1) * 4
        assert {(row.verb, row.operations) for row in counted.rows} == {
            ("all_reduce", 1),
            ("all_gather", 2),
        }

    ranks(body)


def test_counts_only_inside_the_block(ranks):
    def body(group):
        group.all_reduce(np.ones(4))
        with wire(group) as counted:
            assert counted.rows == []
            group.all_reduce(np.ones(4))
            assert len(counted.rows) == 1
        group.all_reduce(np.ones(4))
        assert [row.operations for row in counted.rows] == [1]

    ranks(body)


def test_groups_are_told_apart(ranks):
    def body(group):
        other = group.subgroup([group.rank])
        with wire(group) as counted:
            group.barrier()
            other.barrier()
        assert {row.group for row in counted.rows} == {group.name, other.name}

    ranks(body)


def test_gathers_the_rows_of_all_ranks(ranks):
    def body(group):
        with wire(group) as counted:
            group.gather(np.ones(2), sizes="equal")
        rows = counted.all_ranks()
        assert rows[group.rank] == counted.rows
        assert all(isinstance(row, Row) for mine in rows for row in mine)
        sent = [sum(row.sent for row in mine) for mine in rows]
        assert sent == [0] + [16] * (group.size - 1)

    ranks(body)


def test_examples():
    assert doctest.testmod(counter).failed == 0
