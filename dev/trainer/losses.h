// What the ranks tell each other in a step (run.h: the means of their losses, and TOLD_*), gathered on the device.
//
// The host needs it when a step has ended. Gathered only then, it would come behind the all-gathers of stages 1 and 2
// on the transport's stream, and the next forward would not overlap them. So it is queued before the update, without a
// wait of the host, where the transport has a stream of its own. The means are taken by a host function in a stream,
// while the last backward still runs:
//
//     the run's stream   ... forward, copy of the losses    backward ...    norm    update 0    update 1 ...
//     this one                            \ the means, to the device            \ all ranks' to the host
//     the transport's             ... reduce-scatters ...            norm, losses, all-gather 0, all-gather 1 ...
//
// How long this rank has computed is not known by then: it tells others how long it was in the step before.
#ifndef TRAINER_LOSSES_H
#define TRAINER_LOSSES_H

#include "trainer/run.h"

#ifdef __cplusplus
extern "C" {
#endif

// After the transport was created: r->losses and r->all_losses, zero, and what queueing needs. Where there is nothing
// to gather, or the transport has no stream, or the host decides about the update (options_host_decides), nothing is
// queued: losses_are_queued returns 0, and copied does nothing. Collective.
void losses_create(Run *r);
void losses_destroy(Run *r);
int losses_are_queued(const Run *r);

// A step: copied, after a copy to r->host_losses was queued; queue, after the norm, with a function that sets the first
// G numbers of r->losses from r->host_losses; wait, after the update: r->all_losses is complete.
void losses_copied(Run *r);
void losses_queue(Run *r, void (*take_means)(void *run));
void losses_wait(Run *r);

#ifdef __cplusplus
}
#endif
#endif
