"""Trees: taken apart and put back, their digest, their paths, and what is refused."""

import collections
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.comm.tree import MAX_DEPTH, Structure, flatten, is_tree, unflatten
from hpcpar.errors import ArgumentError, UnsupportedError

PROPERTY = settings(derandomize=True, database=None, deadline=None)

Point = collections.namedtuple("Point", "x y")
Empty = collections.namedtuple("Empty", "")

TREE = {"w": [1.0, 2.0], 7: Point(3.0, (4.0,)), "empty": [(), {}, Empty()], "z": 5}


def test_flatten_takes_members_in_order():
    leaves, structure = flatten(TREE)
    assert leaves == [1.0, 2.0, 3.0, 4.0, 5]
    assert structure.num_leaves == 5
    assert structure.paths() == ("['w'][0]", "['w'][1]", "[7].x", "[7].y[0]", "['z']")


def test_unflatten_gives_the_same_classes():
    leaves, structure = flatten(TREE)
    back = unflatten(structure, [-leaf for leaf in leaves])
    assert back == {"w": [-1, -2], 7: Point(-3, (-4,)), "empty": [(), {}, Empty()], "z": -5}
    assert list(back) == list(TREE)
    assert type(back[7]) is Point
    assert [type(member) for member in back["empty"]] == [tuple, dict, Empty]


def test_ordered_dict_stays_one():
    tree = collections.OrderedDict(b=1, a=2)
    back = unflatten(*reversed(flatten(tree)))
    assert type(back) is collections.OrderedDict
    assert list(back) == ["b", "a"]


def test_single_leaf_is_a_tree_of_one():
    array = np.arange(3)
    leaves, structure = flatten(array)
    assert leaves[0] is array
    assert structure.paths() == ("",)
    assert unflatten(structure, leaves) is array


def test_arrays_are_not_copied_and_the_input_is_left_alone():
    tree = {"a": [np.zeros(2)]}
    leaves, structure = flatten(tree)
    assert leaves[0] is tree["a"][0]
    unflatten(structure, [1])["a"].append(2)
    assert len(tree["a"]) == 1


@pytest.mark.parametrize("x", [{}, [], (), Point(1, 2), collections.OrderedDict()])
def test_containers_are_trees(x):
    assert is_tree(x)


@pytest.mark.parametrize("x", [1, 2.0, np.zeros(3), np.float32(1), "text", None, {1}])
def test_others_are_not(x):
    assert not is_tree(x)


DIFFERENT = [
    1,
    [1],
    (1,),
    [1, 1],
    [[1]],
    {"a": 1},
    {0: 1},
    {"0": 1},
    {"a": 1, "b": 1},
    [],
    Point(1, 1),
]
DIFFERENT += [{"b": 1, "a": 1}, {"a": [1]}, {"a": (1,)}, [[1], 1], [1, [1]], [[], 1], (), {}]


def test_structures_and_digests_tell_trees_apart():
    structures = [flatten(tree)[1] for tree in DIFFERENT]
    assert len(set(structures)) == len(DIFFERENT)
    digests = {structure.digest() for structure in structures}
    assert len(digests) == len(DIFFERENT)
    assert {len(digest) for digest in digests} == {16}


def test_equal_trees_have_equal_structures():
    one, two = flatten({"a": [np.zeros(3)]})[1], flatten({"a": ["x".__len__()]})[1]
    assert one == two
    assert hash(one) == hash(two)
    assert one.digest() == two.digest()


def test_digest_does_not_depend_on_the_hash_seed():
    code = (
        "from hpcpar.comm.tree import flatten\n"
        "print(flatten({'a': [1, (2,)], 3: 4})[1].digest().hex())"
    )
    seen = {flatten({"a": [1, (2,)], 3: 4})[1].digest().hex()}
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        seen.add(run.stdout.strip())
    assert len(seen) == 1


@pytest.mark.parametrize("leaf", [None, "text", b"raw", {1}, frozenset()], ids=repr)
def test_refused_leaf_is_named(leaf):
    with pytest.raises(UnsupportedError, match=r"tree: x\['a'\]\[1\]\.y is .*; a leaf must be"):
        flatten({"a": [1, Point(2, leaf)]})


@pytest.mark.parametrize("kind", ["defaultdict", "list"])
def test_refused_container_is_named(kind):
    tree = collections.defaultdict(int) if kind == "defaultdict" else type("Mine", (list,), {})()
    with pytest.raises(UnsupportedError, match=r"tree: x\[0\] is a \w+; a container must be dict"):
        flatten([tree])


@pytest.mark.parametrize("key", [1.5, None, True, (1,), np.int64(3)], ids=repr)
def test_refused_key_is_named(key):
    with pytest.raises(ArgumentError, match=r"tree: x\[0\] has the key .* must be str or int"):
        flatten([{key: 1}])


def test_cycle_and_depth_are_refused():
    tree = []
    tree.append(tree)
    with pytest.raises(ArgumentError, match="deeper than 100 levels"):
        flatten(tree)
    deep = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert flatten(deep)[0] == [1]


@pytest.mark.parametrize("leaves", [[], [1, 2, 3]])
def test_number_of_leaves_must_fit(leaves):
    with pytest.raises(ArgumentError, match=rf"leaves has {len(leaves)} values, the structure 2"):
        unflatten(flatten([1, 2])[1], leaves)


def test_structure_is_frozen():
    with pytest.raises(AttributeError):
        flatten([1])[1].kind = tuple
    assert isinstance(flatten([1])[1], Structure)


NESTED = st.recursive(
    st.integers(),
    lambda sub: (
        st.lists(sub, max_size=4)
        | st.tuples(sub, sub)
        | st.builds(Point, sub, sub)
        | st.dictionaries(st.text(max_size=3) | st.integers(), sub, max_size=4)
    ),
    max_leaves=20,
)


@PROPERTY
@given(NESTED)
def test_any_tree_comes_back(tree):
    leaves, structure = flatten(tree)
    back = unflatten(structure, leaves)
    assert back == tree
    assert flatten(back)[1] == structure
    assert len(structure.paths()) == len(set(structure.paths())) == len(leaves)


@PROPERTY
@given(NESTED)
def test_paths_lead_to_the_leaves(tree):
    leaves, structure = flatten(tree)
    assert [eval("x" + path, {"x": tree}) for path in structure.paths()] == leaves
