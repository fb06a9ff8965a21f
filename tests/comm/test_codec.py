"""The object codec: exact round trips, refusals with their place, and hostile bytes."""

import collections
import contextlib
import enum
import math
import pickle
import random
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.comm import codec
from hpcpar.comm.codec import decode, encode, join
from hpcpar.errors import ArgumentError, BackendUnavailable, HpcparError, UnsupportedError

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=200)


class Foo:
    """A class of the user's, at module level so that pickle finds it."""

    def __init__(self, value):
        self.value = value

    __hash__ = object.__hash__

    def __eq__(self, other):
        return type(other) is Foo and np.array_equal(self.value, other.value)


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("not me")


Point = collections.namedtuple("Point", "x y")


def message(body, data=b""):
    body = bytes(body)
    gap = bytes(-(24 + len(body)) % 64) if data else b""
    head = struct.pack("<4sIQQ", b"hpob", 1, len(body), 24 + len(body) + len(gap) + len(data))
    return head + body + gap + data


def trip(obj, **options):
    return decode(join(encode(obj, **options)), **options)


def same(a, b):
    """Equal in type, structure and bits (a NaN equals itself)."""
    if isinstance(a, np.generic):
        return same(np.asarray(a), np.asarray(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, np.ndarray):
        bits = np.array_equal(a, b) if a.dtype.char in "gG" else a.tobytes() == b.tobytes()
        return a.dtype == b.dtype and a.shape == b.shape and bits  # padding is no value
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    return a == b


VALUES = [
    None,
    True,
    False,
    ...,
    0,
    -1,
    127,
    128,
    -128,
    -129,
    2**63,
    -(2**64),
    7**5000,
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    struct.unpack("<d", b"\x01\x02\x03\x04\x05\x06\xf8\xff")[0],
    5e-324,
    complex(-0.0, math.nan),
    "",
    "a\0b\u20ac\U0001f600",
    "\ud800 alone",
    b"",
    b"\x00" * 512,
    b"x" * 513,
    bytearray(b"ab"),
    bytearray(5000),
    [],
    (),
    {},
    set(),
    frozenset(),
    [1, [2, (3, [])]],
    {"b": 1, "a": 2, 3: "x", (1, "t"): None, None: 0, frozenset({1}): b"", 1.5: 2j},
    {1, "a", (2, 3)},
    frozenset({b"k"}),
    slice(None),
    slice(1, -(2**70), 2),
    slice("a", [1], None),
    range(0),
    range(2**80, -5, -7),
]


@pytest.mark.parametrize("obj", VALUES, ids=lambda v: f"{type(v).__name__}")
def test_value_comes_back_exactly(obj):
    assert same(trip(obj), obj)


def test_dict_keeps_its_order():
    assert list(trip({"z": 0, "a": 1, "m": 2})) == ["z", "a", "m"]


def test_shared_object_is_sent_twice():
    part = [1]
    first, second = trip([part, part])
    assert first == second == [1]
    assert first is not second


DTYPES = [
    *"?bBhHiIqQefdgFDG",
    ">i4",
    ">f8",
    ">c16",
    "S5",
    "U3",
    ">U3",
    "V7",
    "M8[ns]",
    "m8[25s]",
    ">M8[D]",
    [("a", "i4"), ("b", ">f8", (2, 3))],
    [(("title", "t"), "u1"), ("nested", [("x", "f4"), ("y", "S2")])],
    {"names": ["p", "q"], "formats": ["f4", "i2"], "offsets": [8, 1], "itemsize": 20},
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    np.dtype((np.record, [("r", "i4")])),
    [],
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.int4,
]


def filled(dtype, shape):
    """Return an array with every byte pattern random but valid for its dtype."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(1)
    if dtype.kind == "U":
        return np.full(shape, "\u20aca", dtype)
    if dtype.char in "gG":
        return rng.random(shape).astype(dtype)
    raw = rng.integers(0, 2, math.prod(shape) * dtype.itemsize, np.uint8)
    return np.ndarray(shape, dtype, raw.tobytes()).copy()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (40, 17), (2, 0, 3)], ids=str)
def test_array_of_any_dtype(dtype, shape):
    array = filled(dtype, shape)
    back = trip(array)
    assert same(back, array)
    assert back.dtype.str == array.dtype.str
    assert issubclass(back.dtype.type, np.record) == issubclass(array.dtype.type, np.record)
    assert back.dtype.isalignedstruct == array.dtype.isalignedstruct
    assert back.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scalar_and_dtype(dtype):
    scalar = filled(dtype, (1,))[0]
    assert same(trip(scalar), scalar)
    assert trip(np.dtype(dtype)) == np.dtype(dtype)
    assert trip(np.dtype((dtype, (2,)))) == np.dtype((dtype, (2,)))


def test_field_titles_and_offsets_survive():
    dtype = np.dtype({"names": ["p"], "formats": ["f4"], "offsets": [4], "titles": ["big p"]})
    assert trip(dtype).fields == dtype.fields


def test_swapped_ml_dtype_keeps_its_order():
    dtype = np.dtype(ml_dtypes.bfloat16).newbyteorder(">")
    assert trip(dtype) == dtype
    assert not trip(dtype).isnative


def test_numpy_strings_keep_trailing_nuls():
    text, raw = trip(np.str_("a\0")), trip(np.bytes_(b"a\0"))
    assert (type(text), len(text)) == (np.str_, 2)
    assert (type(raw), len(raw)) == (np.bytes_, 2)


@pytest.mark.parametrize("size", [4, 1000])
def test_layouts(size):
    base = np.arange(3.0 * size).reshape(3, size)
    for array in (
        base,
        base.T,
        base[:, ::-1],
        base[::2, 1::2],
        np.broadcast_to(base[0], (4, size)),
    ):
        back = trip(array)
        assert same(back, array)
    assert trip(base.T).flags.f_contiguous
    assert not trip(base.T).flags.c_contiguous


def test_memmap_arrives_as_an_array(tmp_path):
    array = np.memmap(tmp_path / "m", np.float32, "w+", shape=(9,))
    array[:] = np.arange(9)
    back = trip(array)
    assert type(back) is np.ndarray
    assert np.array_equal(back, array)


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_contiguous_array_is_not_copied(order):
    array = np.zeros((64, 64), order=order)
    views = [np.frombuffer(part, np.uint8) for part in encode({"w": array, "b": bytes(10)})]
    assert any(np.shares_memory(view, array) for view in views)


def test_buffers_are_aligned():
    coded = join(encode([np.full(100, 7.0), bytes(700), np.full(200, 9.0)]))
    assert coded.index(struct.pack("<d", 7.0)) % 64 == 0
    assert coded.index(struct.pack("<d", 9.0)) % 64 == 0


def test_decoded_array_shares_nothing():
    coded = bytearray(join(encode(np.arange(1000))))
    back = decode(memoryview(coded))
    coded[:] = bytes(len(coded))
    assert np.array_equal(back, np.arange(1000))


def test_missing_library_is_named():
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "from hpcpar.comm.codec import decode\n"
        "from hpcpar.errors import BackendUnavailable\n"
        "try: decode(bytes.fromhex(sys.argv[1]))\n"
        "except BackendUnavailable as exc: print(exc)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, join(encode(ml_dtypes.bfloat16(1))).hex()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "pip install ml_dtypes" in run.stdout


def test_unknown_ml_dtype_is_named():
    newer = join(encode(np.dtype(ml_dtypes.bfloat16))).replace(b"bfloat16", b"bfloat99")
    with pytest.raises(BackendUnavailable, match="no dtype 'bfloat99'"):
        decode(newer)
    # something in ml_dtypes that is no dtype
    forged = message(b"t(\x03s\x09ml_dtypess\x05finfoT")
    with pytest.raises(BackendUnavailable, match="no dtype 'finfo'"):
        decode(forged)


class Colour(enum.IntEnum):
    RED = 1


REFUSED = [
    ({"a": [0, 1, 2, Foo(1)]}, "obj['a'][3]", "Foo"),
    ([Point(1, 2)], "obj[0]", "Point"),
    ({"k": collections.OrderedDict()}, "obj['k']", "OrderedDict"),
    ({Foo: 1}, "obj.<key <class ", "type"),
    ({1: {"s": {print}}}, "obj[1]['s'].<element 0>", "builtin_function"),
    (slice(0, Foo(1)), "obj.stop", "Foo"),
    (Colour.RED, "obj is", "Colour"),
    (np.array([None]), "obj is", "dtype object"),
    (np.dtype([("a", "O")]), "obj is", "Python objects"),
    (np.array(["a"], np.dtypes.StringDType()), "obj is", "StringDType"),
    (np.ma.masked_array([1]), "obj is", "MaskedArray"),
    (np.rec.array([(1,)], dtype=[("a", "i4")]), "obj is", "recarray"),
]


@pytest.mark.parametrize(("obj", "place", "kind"), REFUSED, ids=[r[2] for r in REFUSED])
def test_refusal_names_type_place_and_next_step(obj, place, kind):
    with pytest.raises(UnsupportedError) as caught:
        encode(obj)
    text = str(caught.value)
    assert place in text
    assert kind in text
    assert "allow_pickle=True" in text


def test_pickle_when_allowed():
    obj = {"a": [1, Foo(3)], "p": Point(1, [2]), "o": np.array([None, "x"])}
    back = trip(obj, allow_pickle=True)
    assert back["a"] == [1, Foo(3)]
    assert back["p"] == Point(1, [2])
    assert type(back["p"]) is Point
    assert back["o"].tolist() == [None, "x"]


def test_pickled_arrays_travel_out_of_band():
    big = Foo(np.arange(10_000.0))
    parts = encode([big], allow_pickle=True)
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), big.value) for part in parts)
    back = decode(join(parts), allow_pickle=True)[0]
    assert back == big
    back.value[0] = 5.0  # writable, and our own
    assert big.value[0] == 0.0


def test_pickle_is_refused_on_arrival_too():
    coded = join(encode(Foo(1), allow_pickle=True))
    with pytest.raises(UnsupportedError, match=r"decode: data holds a pickle.*allow_pickle=True"):
        decode(coded)


def test_object_that_pickle_refuses():
    with pytest.raises(UnsupportedError, match=r"obj\[0\] is .*Unpicklable.*not me"):
        encode([Unpicklable()], allow_pickle=True)


def test_no_code_runs_without_leave(monkeypatch):
    def trap(*args, **kwargs):
        raise AssertionError("pickle was called")

    coded = join(encode(Foo(1), allow_pickle=True))
    monkeypatch.setattr(pickle, "loads", trap)
    with pytest.raises(UnsupportedError):
        decode(coded)


def nested(depth):
    obj = []
    for _ in range(depth - 1):
        obj = [obj]
    return obj


def test_depth_limit():
    assert trip(nested(codec.MAX_DEPTH)) == nested(codec.MAX_DEPTH)
    with pytest.raises(ArgumentError, match="deeper than 100"):
        encode(nested(codec.MAX_DEPTH + 1))
    with pytest.raises(ArgumentError, match="deeper than 100"):
        decode(message(b"[\x01" * 5000 + b"N"))


def test_cycle_is_refused_and_named():
    obj = {"a": [1]}
    obj["a"].append(obj)
    with pytest.raises(ArgumentError, match=r"obj\['a'\]\[1\] contains itself"):
        encode(obj)


HUGE = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"  # 2**63 - 1 as a base-128 number
LIES = {
    "empty": b"",
    "short": b"hpob",
    "magic": b"PKL!" + bytes(60),
    "version": struct.pack("<4sIQQ", b"hpob", 2, 1, 25) + b"N",
    "no values": message(b""),
    "tag": message(b"\xfe"),
    "list": message(b"[" + HUGE),
    "dict": message(b"d" + HUGE),
    "number without end": message(b"[" + b"\xff" * 20),
    "blob": message(b"b" + HUGE),
    "left over": message(b"NN"),
    "data left over": message(b"N", b"x"),
    "array": message(b"as\x03<f8(\x01i\x08" + b"\xff" * 7 + b"\x7f" + HUGE),
    "array too large": message(b"as\x03<f8(\x01i\x01\x02\x08" + bytes(8)),
    "negative shape": message(b"as\x03<f8(\x02i\x01\xffi\x01\xff\x08" + bytes(8)),
    "list as shape": message(
        b"as\x03<f8(\x02[\x01i\x01\x00i\x08" + b"\xff" * 7 + b"\x0f\x08" + bytes(8)
    ),
    "object array": message(b"as\x02|O(\x00\x08" + bytes(8)),
    "object field": message(b"t(\x05s\x06fields(\x01(\x04s\x01as\x02|Oi\x01\x00Ni\x01\x08FF"),
    "comma dtype": message(b"ts\x05f8,f8"),
    "unhashable key": message(b"d\x01[\x00N"),
    "unhashable element": message(b"{\x01[\x00"),
    "range step 0": message(b"ri\x01\x00i\x01\x01i\x01\x00"),
    "bad utf-8": message(b"s\x01\xff"),
    "unknown sparse": message(b"xs\x02op(\x00\x00"),
    "many dims": message(b"as\x03|i1(\x41" + b"i\x01\x01" * 65 + b"\x01\x00"),
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES.keys())
def test_lies_are_refused(data):
    with pytest.raises(ArgumentError, match="decode: data"):
        decode(data)


RICH = {
    "w": np.arange(300.0).reshape(3, 100).T,
    "s": [1, -(2**70), "text", b"raw" * 300, {1.5, "a"}, range(3), slice(1, None), 1j, ...],
    ("k", 2): np.array([(1, b"ab")], [("a", ">i4"), ("b", "S2")]),
    "d": [np.dtype("M8[ns]"), np.float32(2), np.datetime64("2026-01-01"), ml_dtypes.bfloat16(3)],
}


def survives(data):
    with contextlib.suppress(HpcparError):
        decode(data)


@pytest.mark.filterwarnings("ignore")  # NumPy and SciPy may warn about what the damage made valid
def test_fuzz_flipped_and_cut_messages():
    good = join(encode(RICH))
    decode(good)
    rng = random.Random(5)
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 8])):
            bad[rng.randrange(min(len(bad), rng.choice([24, 900, len(bad)])))] = rng.randrange(256)
        survives(bytes(bad))
    for n in range(0, len(good), 7):
        with pytest.raises(ArgumentError):
            decode(good[:n])


@PROPERTY
@given(st.binary(max_size=200))
def test_fuzz_header(body):
    survives(message(body))


LEAF = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers()
    | st.text() | st.binary(max_size=600)
)  # fmt: skip
KEY = st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
TREE = st.recursive(
    LEAF,
    lambda sub: (
        st.lists(sub) | st.tuples(sub, sub) | st.dictionaries(KEY, sub)
        | st.frozensets(KEY) | st.sets(KEY)
    ),
    max_leaves=20,
)  # fmt: skip


@PROPERTY
@given(TREE)
def test_any_tree_comes_back(tree):
    assert same(trip(tree), tree)
