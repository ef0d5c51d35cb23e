// bootstrap_mpi.h: ranks that MPI has introduced (bootstrap.h says what a bootstrap does).
#ifndef ZERO_BOOTSTRAP_MPI_H
#define ZERO_BOOTSTRAP_MPI_H
#include <mpi.h>
#include "zero/comm/bootstrap/bootstrap.h"
#ifdef __cplusplus
extern "C" {
#endif

// Collective over comm (duplicated, so the caller may go on using it; destroy before MPI_Finalize). timeout_s: 0 is 300
// s.
int zero_bootstrap_create_mpi(zero_bootstrap **out, MPI_Comm comm, double timeout_s);

#ifdef __cplusplus
}
#endif
#endif
