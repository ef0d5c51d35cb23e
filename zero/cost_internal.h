// cost_internal.h: what the files of the cost formulas share.
#ifndef ZERO_COST_INTERNAL_H
#define ZERO_COST_INTERNAL_H
#include "zero/cost.h"

// What a rank has of the optimizer's state. [1]: of it, what is offloaded.
struct state {
    size_t numel[2], trained[2];                                           // elements: of all units, of trained ones
    size_t arrays;                                                         // with an element for each
    size_t parts, chunks;                                                  // chunks: that the device updates
    size_t largest;                                                        // elements of the largest offloaded part
    uint64_t file_bytes, buffer_bytes;                                     // ZERO_OFFLOAD_NVME
    uint64_t update_parts, update_bytes;                                   // of the file: parts that an update changes
    uint64_t params_file_bytes, params_buffer_bytes, params_update_bytes;  // the same of parameters
};
struct state zero_cost_count_state(const zero_cost *p, const zero_layout *l);

// The rows of host memory and of the disk: bytes and formula, which is empty if there is nothing.
void zero_cost_offloaded(const zero_cost *p, const zero_layout *l, const struct state *state, zero_row *host,
                         zero_row *disk);

// Stage 3: what a step all-gathers, as zero_param_cache_traffic.
uint64_t zero_cost_gathered(const zero_cost *p, const zero_layout *l, const uint64_t *weight);

static inline enum zero_offload params_offload(const zero_cost *p) { return zero_params_offload(&p->settings); }
static inline size_t trained(const zero_layout *l) { return l->trained_offset[l->num_units]; }
static inline const char *psi_trained(const zero_layout *l) { return trained(l) < l->numel_padded ? "Psi_t" : "Psi"; }

#endif
