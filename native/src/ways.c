/*
 * Which of two ways was faster lately. Neither is always: it depends on how far cores are from each
 * other, which changes while a program runs, on sizes of pages, on what else the machine does.
 */
#include "engine.h"

#define OTHERWISE 32 /* of so many choices, one is the slower way: it may have become faster */
#define UNIT (64 << 10)

int hp_ways_class(const struct hp_node *node, uint64_t nbytes)
{
    int class = 0;
    while (class < HP_WAY_SIZES - 1 && (nbytes /= 4) >= node->tuning.lend)
        class++;
    return class;
}

/* The best of the last times: others may have been disturbed. */
static uint32_t best(const struct hp_ways *ways, enum hp_way_of way)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < HP_WAYS_KEPT && i < ways->told[way]; i++)
        if (ways->took[way][i] < least)
            least = ways->took[way][i];
    return least;
}

enum hp_way_of hp_ways_choose(struct hp_ways *ways)
{
    for (int way = HP_BY_LENDING; way >= HP_BY_CHUNKS; way--)
        if (ways->told[way] == 0)
            return (enum hp_way_of)way;
    const bool lends = best(ways, HP_BY_LENDING) < best(ways, HP_BY_CHUNKS);
    const bool tries = ++ways->choices % OTHERWISE == 0;
    return lends != tries ? HP_BY_LENDING : HP_BY_CHUNKS;
}

void hp_ways_tell(struct hp_ways *ways, enum hp_way_of way, uint64_t nbytes, uint64_t took)
{
    const double each = (double)took * UNIT / (double)nbytes;
    const uint32_t kept = each < (double)UINT32_MAX ? (uint32_t)each : UINT32_MAX;
    ways->took[way][ways->told[way]++ % HP_WAYS_KEPT] = kept;
}
