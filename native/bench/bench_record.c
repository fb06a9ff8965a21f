/* One record: begin, traffic, end, and without traffic; size is the records held. */
#include "bench.h"

static void clock_only(void *arg)
{
    *(volatile double *)arg = now_ns();
}

static const struct hp_operation op = {.slot = 0, .verb = 1, .count = 100, .itemsize = 4};

static void record_silent(void *recorder)
{
    hp_recorder_end(recorder, hp_recorder_begin(recorder, &op), 0);
}

static void record(void *recorder)
{
    static const struct hp_total traffic = {.sent = 1, .received = 1, .messages = 1};
    const int64_t ticket = hp_recorder_begin(recorder, &op);
    hp_recorder_sent(recorder, ticket, &traffic);
    hp_recorder_end(recorder, ticket, 0);
}

int main(void)
{
    const size_t capacity = 1024, nbytes = hp_recorder_bytes(capacity, 1);
    void *const memory = filled(nbytes);
    double sink;
    struct hp_recorder recorder;
    hp_recorder_init(&recorder, memory, capacity);
    hp_recorder_add_group(&recorder, "world", 0, 1);
    report("clock", 1, time_ns(clock_only, &sink), 0);
    report("begin + end", capacity, time_ns(record_silent, &recorder), 0);
    report("begin + sent + end", capacity, time_ns(record, &recorder), 0);
    free(memory);
    return 0;
}
