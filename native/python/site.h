/* site.h - where a call comes from. */
#ifndef HP_PY_SITE_H
#define HP_PY_SITE_H

#include "hp_python.h"

struct hp_sites; /* what is known of the code that calls */

/* `own`: the path that our own files begin with. NULL with an exception set. */
struct hp_sites *hp_sites_new(const char *own);
void hp_sites_free(struct hp_sites *sites);
/* "file.py:12", HP_SITE_BYTES long with zeros, valid until the next call; NULL: nobody knows. */
const char *hp_sites_here(struct hp_sites *sites);

#endif
