/*
 * Which of two ways was faster lately. Neither is always: it depends on how far cores are from each
 * other, which changes while a program runs, on sizes of pages, on what else the machine does.
 */
#include "engine.h"

#define TRIED_EACH 32 /* choices: then the other way, if it was as fast; slower ones more rarely */
#define KEPT_BYTES (64 << 10)

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
    const uint32_t lent = best(ways, HP_BY_LENDING), in_chunks = best(ways, HP_BY_CHUNKS);
    const bool lends = lent < in_chunks;
    const uint32_t fast = lends ? lent : in_chunks, slow = lends ? in_chunks : lent;
    ways->choices++;
    if (ways->choices / TRIED_EACH < slow / (fast > 0 ? fast : 1))
        return lends ? HP_BY_LENDING : HP_BY_CHUNKS;
    ways->choices = 0;
    return lends ? HP_BY_CHUNKS : HP_BY_LENDING;
}

void hp_ways_tell(struct hp_ways *ways, enum hp_way_of way, uint64_t nbytes, uint64_t took)
{
    const double each = (double)took * KEPT_BYTES / (double)nbytes;
    const uint32_t kept = each < (double)UINT32_MAX ? (uint32_t)each : UINT32_MAX;
    ways->took[way][ways->told[way]++ % HP_WAYS_KEPT] = kept;
}
