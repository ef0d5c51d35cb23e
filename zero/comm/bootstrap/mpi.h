// mpi.h: ranks that meet by MPI (bootstrap.h says what a bootstrap does).
#ifndef ZERO_BOOTSTRAP_MPI_H
#define ZERO_BOOTSTRAP_MPI_H
#include <mpi.h>
#include "zero/comm/bootstrap/bootstrap.h"
#include "zero/comm/transport_registry.h"
#ifdef __cplusplus
extern "C" {
#endif

// Collective over comm, which is duplicated, so the caller may go on using it; destroy before MPI_Finalize. timeout_s:
// 0 is 300 s. After ZERO_ERR_COMM the caller may not: MPI_Comm_idup may still be under way, and collectives on comm,
// MPI_Comm_free among them, may be mistaken for it or never return. End with MPI_Abort.
int zero_bootstrap_create_mpi(zero_bootstrap **out, MPI_Comm comm, double timeout_s);

// The ranks of comm meet, and get a communicator, in one call: zero_bootstrap_create_mpi, zero_comm_create. transport:
// its name (zero_transport_find). Collective; fails on all ranks. On failure *out is NULL and err has the message, and
// after ZERO_ERR_COMM comm is as above.
int zero_comm_create_mpi(zero_comm **out, MPI_Comm comm, const char *transport, const zero_comm_config *config,
                         zero_accounting *accounting, char *err, size_t err_bytes);

// A duplicate of the communicator of a bootstrap whose ranks met by MPI (ZERO_ERR_ARG: they met in another way). After
// ZERO_ERR_COMM, when a rank has not come in time, the bootstrap has failed and has the message; so have later calls.
// Collective.
int zero_bootstrap_dup_mpi(zero_bootstrap *b, MPI_Comm *out, double timeout_s);

// MPI_Comm_free, once all ranks have come; if one does not come in time the communicator is kept for ever.
void zero_bootstrap_free(MPI_Comm *comm, double timeout_s);

#ifdef __cplusplus
}
#endif
#endif
