"""Ranks of the node engine that die or stop: an error on all others, soon, and nobody hangs."""

import random
import re

import pytest

GENEROUS = 10.0  # seconds for what takes 0.1

#: What the ranks do while the last one is killed; `group` is the world, `g` what they use.
DEATHS = {
    "a loop of small arrays": """
        signal_me("KILL", delay) if last else None
        while True:
            g.all_reduce(x, out=out)
    """,
    "a loop of large arrays": """
        x, out = np.ones(1_000_000), np.empty(1_000_000)
        signal_me("KILL", delay) if last else None
        while True:
            g.all_reduce(x, out=out)
            g.reduce(x, root=0)
            g.broadcast(x, root=g.size - 1)
    """,
    "before its first collective": """
        if last:
            signal_me("KILL", delay)
            time.sleep(60)
        g.all_gather(x)
    """,
    "a subgroup": """
        g = group.subgroup(range(group.size)[::-1])
        signal_me("KILL", delay) if last else None
        while True:
            g.all_gather(x, sizes="equal")
    """,
    "the making of a subgroup": """
        if last:
            signal_me("KILL", 0)
            time.sleep(60)
        time.sleep(delay)
        g = group.subgroup(range(group.size)[::-1])
    """,
    "an asynchronous wait": """
        if last:
            signal_me("KILL", delay)
            time.sleep(60)
        g.all_reduce(x, async_op=True).wait()
    """,
    "a loop of persistent calls": """
        from hpcpar.comm.persistent import PersistentAllReduce
        kept = PersistentAllReduce(g, np.ones(100_000), "sum")
        signal_me("KILL", delay) if last else None
        while True:
            kept.start().wait()
    """,
    "a receive": """
        if last:
            signal_me("KILL", delay)
            time.sleep(60)
        g.recv(src=g.size - 1)
    """,
    "a receive from anybody": """
        if last:
            signal_me("KILL", delay)
            time.sleep(60)
        g.recv() if g.size == 2 else g.recv(src=g.size - 1, async_op=True).wait()
    """,
    "a large send": """
        if last:
            signal_me("KILL", delay)
            time.sleep(60)
        g.send(np.ones(1_000_000), dst=g.size - 1)
    """,
}
#: What survivors do when they have seen it.
ENDS = {"raise": "raise", "sys.exit(0)": "sys.exit(0)", "shutdown": "hp.shutdown()"}


def indented(code, depth):
    lines = [line[8:] for line in code.strip("\n").split("\n")]
    return "\n".join(" " * depth + line for line in lines)


def die(node_job, what, n, end, delay, **env):
    """Run a job whose last rank is killed; return seconds until the others knew."""
    body = f"""
g, delay = group, {delay}
group.barrier()
try:
{indented(DEATHS[what], 4)}
except HpcparError as error:
    say("seen", error)
    {ENDS[end]}
"""
    done = node_job(body, n, **env)
    assert done.code not in (0, None), done
    seen = done.said("seen")
    assert [note.rank for note in sorted(seen, key=lambda s: s.rank)] == list(range(n - 1)), done
    place = 0 if "subgroup" in what else n - 1
    for note in seen:
        assert re.match(rf"RankFailed: (subgroup: )?rank {place} .*(died|missing)", note.text), note
    begin = done.signalled + (delay if "making" in what else 0)
    late = max(note.at for note in seen) - begin
    print(f"{what}, {n} ranks, {end}, after {delay:.3f} s: seen after {late:.3f} s")
    return late


@pytest.mark.parametrize(
    ("what", "n", "end"),
    [
        ("a loop of small arrays", 2, "raise"),
        ("a loop of large arrays", 3, "sys.exit(0)"),
        ("before its first collective", 3, "shutdown"),
        ("a subgroup", 3, "sys.exit(0)"),
        ("the making of a subgroup", 3, "sys.exit(0)"),
        ("an asynchronous wait", 3, "sys.exit(0)"),
        ("a loop of persistent calls", 3, "sys.exit(0)"),
        ("a receive", 3, "sys.exit(0)"),
        ("a receive from anybody", 2, "raise"),
        ("a large send", 2, "sys.exit(0)"),
    ],
)
def test_a_killed_rank_is_named_by_the_others(node_job, what, n, end):
    assert die(node_job, what, n, end, random.uniform(0.0, 0.3)) < GENEROUS


def test_a_death_is_seen_where_windows_went_by_files(node_job):
    what = "a loop of small arrays"
    assert die(node_job, what, 3, "sys.exit(0)", 0.1, HPCPAR_SHM="file") < GENEROUS


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("what", DEATHS)
def test_a_rank_may_be_killed_at_any_moment(node_job, what, n, end):
    for _ in range(3):
        assert die(node_job, what, n, end, random.uniform(0.0, 0.3)) < GENEROUS


LATE = """
    group.barrier()
    if last:
        signal_me("STOP", 0, f"sleep 3.5; kill -CONT {os.getpid()}")
        time.sleep(0.5)
    began = time.monotonic()
    try:
        BLOCK
        say("done")
    except CollectiveTimeout as error:
        assert 1.9 < time.monotonic() - began < 12, time.monotonic() - began
        say("late", error)
    except GroupFailed as error:
        say("refused", error)
    try:
        group.all_reduce(x, out=out)
    except GroupFailed as error:
        say("refused later", error)
    if not last:
        time.sleep(3)
    os._exit(3)
"""


CALLS = {
    "init(timeout=)": ("timeout=2.0", "group.all_reduce(x, out=out)"),
    "a call": ("", "group.all_reduce(x, timeout=2)"),
    "an asynchronous call": ("", "group.all_reduce(x, async_op=True, timeout=2).wait()"),
}


@pytest.mark.parametrize(
    ("how", "count"),
    [
        ("init(timeout=)", 4),
        ("an asynchronous call", 1_000_000),
        pytest.param("init(timeout=)", 1_000_000, marks=pytest.mark.slow),
        pytest.param("a call", 4, marks=pytest.mark.slow),
        pytest.param("a call", 1_000_000, marks=pytest.mark.slow),
        pytest.param("an asynchronous call", 4, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_rank_is_late_and_comes_back_to_a_failed_group(node_job, how, count):
    timeout, call = CALLS[how]
    done = node_job(
        f"""
group = hp.init({timeout})
last = group.rank == group.size - 1
x = np.ones({count})
out = np.empty_like(x)
for _ in range(20):
    group.all_reduce(x, out=out)
"""
        + "\n".join(line[4:] for line in LATE.replace("BLOCK", call).split("\n")),
        3,
        start="",
    )
    assert done.code == 3, done
    assert {note.rank for note in done.said("late")} == {0, 1}, done
    for note in done.said("late"):
        assert "missing: [2] [rank" in note.text
    assert [note.rank for note in done.said("refused")] == [2], done
    assert "GroupFailed: rank 0 has given up" in done.said("refused")[0].text
    assert {note.rank for note in done.said("refused later")} == {0, 1, 2}
    assert done.said("done") == []


@pytest.mark.parametrize("leave", ["os._exit(5)", "sys.exit(3)", "raise ValueError('boom')"])
def test_however_a_rank_leaves_nobody_waits_for_it(node_job, leave):
    done = node_job(
        f"""
        group.barrier()
        if last:
            {leave}
        try:
            group.all_reduce(x, out=out)
        except HpcparError as error:
            say("seen", error)
            raise
        """,
        3,
    )
    assert done.code not in (0, None)
    assert {note.rank for note in done.said("seen")} <= {0, 1}, done
    assert "_exit" not in leave or len(done.said("seen")) == 2
    assert all("RankFailed: rank 2 has left or died" in note.text for note in done.notes)
    assert ("boom" in leave) == ("[rank 2/3] ValueError: boom" in done.err)


def test_ctrl_c_ends_a_wait_and_fails_the_group(node_job):
    """An operation that was broken off may leave others behind: nothing can follow it."""
    done = node_job(
        """
        def broken(call):
            if last:
                signal_me("INT", 0.3)
            else:
                time.sleep(1.5)
            for what in ("first", "next"):
                try:
                    call()
                    say(what)
                except (KeyboardInterrupt, GroupFailed) as error:
                    say(what, error)
        twin = group.subgroup(range(group.size)[::-1])
        broken(lambda: twin.all_gather(x))
        first = Path(__file__).with_name("signalled")
        say("long", float(first.read_text()))
        for _ in range(20):
            group.all_reduce(x, out=out)
        broken(lambda: group.all_reduce(x, out=out))
        os._exit(3)
        """,
        3,
    )
    assert done.code == 3, done
    first, following = done.said("first"), done.said("next")
    assert len(first) == len(following) == 6, done
    for note in first:
        error = "KeyboardInterrupt: " if note.rank == 2 else "GroupFailed: rank "
        assert note.text.startswith(error), note
    assert all(note.text.startswith("GroupFailed: ") for note in following)
    sent = [done.signalled, float(done.said("long")[0].text.partition(": ")[2])]
    caught = [note.at for note in first if note.rank == 2]
    waits = [at - began for at, began in zip(caught, sorted(sent), strict=True)]
    print("interrupts were raised after", [f"{1e3 * wait:.0f} ms" for wait in waits])
    assert max(waits) < GENEROUS


DONE = r"world #\d+ all_reduce float64\[4\] 0\.0 KiB at script.py:\d+ done \d+ us \(\d\.\d s ago\)"
OPEN = r"world #\d+ all_gather float64\[4\] 0\.0 KiB at script.py:\d+ not done, begun \d\.\d s ago"


@pytest.mark.parametrize(
    ("wait", "call", "last"),
    [
        ("time.sleep(60)", "group.all_reduce(x, out=out)", DONE),
        ("group.all_gather(x)", "time.sleep(1); group.all_gather(x)", OPEN),
        ("time.sleep(60)", "group.all_reduce(x, async_op=True).wait()", DONE),
        ("time.sleep(60)", "group.subgroup(range(3)[::-1])", DONE),
    ],
)
def test_the_record_of_a_killed_rank_outlives_it(node_job, wait, call, last):
    done = node_job(
        f"""
for _ in range(5):
    group.all_reduce(x, out=out)
if last:
    signal_me("KILL", 0.3)
    {wait}
try:
    {call}
except HpcparError as error:
    say("story: " + "|".join(error.__notes__))
    os._exit(3)
""",
        3,
    )
    stories = [note for note in done.notes if note.what.startswith("story: ")]
    assert sorted(note.rank for note in stories) == [0, 1], done
    for note in stories:
        place = 0 if "subgroup" in call else 2
        assert re.match(rf"story: rank {place} last: {last}", note.what), note
        own = "|last operations of this rank:\n  world #"
        assert own in note.what or "subgroup" in call


def test_the_record_of_a_stopped_rank_is_read(node_job):
    done = node_job(
        """
for _ in range(5):
    group.all_reduce(x, out=out)
if last:
    signal_me("STOP", 0, f"sleep 3; kill -KILL {os.getpid()}")
    time.sleep(60)
for call in (lambda: group.all_reduce(x, timeout=1.5), lambda: group.all_reduce(x, out=out)):
    try:
        call()
    except CollectiveTimeout as error:
        say("late", error)
        say("story: " + "|".join(error.__notes__))
    except GroupFailed:
        time.sleep(3)  # the job ends, and with it who kills the stopped one
        os._exit(3)
""",
        3,
    )
    assert {note.rank for note in done.said("late")} == {0, 1}, done
    stories = [note for note in done.notes if note.what.startswith("story: ")]
    assert len(stories) == 2, done
    for note in stories:
        assert re.match(rf"story: rank 2 last: {DONE}\|last operations", note.what), note


def test_the_report_of_a_job_that_ends_tells_what_who_left_did_last(node_job):
    done = node_job(
        """
        group.barrier()
        if not last:
            time.sleep(0.2)
            group.all_reduce(x, out=out)
        """,
        3,
    )
    assert done.code not in (0, None)
    assert re.search(r"rank 2 last: world #0 barrier at script.py:\d+ done \d+ us", done.err), done


def test_a_record_can_be_read_after_shutdown(node_job):
    done = node_job(
        """
        for _ in range(3):
            group.all_reduce(x, out=out)
        record = group.recorder
        hp.shutdown()
        say(f"kept {len(record.last(8))} of {record.groups()[0][:3]}")
        group = hp.init()
        group.all_reduce(x, out=out)
        say(f"new {len(group.recorder.last(8))}")
        """,
        2,
    )
    assert done.code == 0, done
    kept = [f"kept 3 of ('world', {rank}, 2)" for rank in range(2)]
    assert sorted(note.what for note in done.notes) == [*kept, "new 1", "new 1"]
