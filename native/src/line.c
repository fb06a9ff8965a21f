/* How far the cores of ranks are from each other: how long a line of another's cache takes. */
#include "engine.h"

#define OWN_NS 20 /* what a line takes that another rank of this core wrote */
#define STEP_NS 4

/*
 * About the median of all samples, for an interrupt may fall into one and what a sleeping core last
 * wrote may lie in memory. Where ranks share a core lines need not come at all.
 */
int hp_line_after(const struct hp_node *node, int line_ns, uint64_t took)
{
    const int ns = (int)took - (int)node->clock_ns;
    if (ns < OWN_NS)
        return line_ns;
    return line_ns + (ns > line_ns ? STEP_NS : -STEP_NS);
}

bool hp_line_is_far(const struct hp_node *node, int line_ns)
{
    return line_ns > (int)node->tuning.far_ns;
}
