// message_counter.h: counts bytes in messages by MPI's profiling interface, whatever the transport says. A program
// includes it once, and allocates sent_to.
#ifndef MESSAGE_COUNTER_H
#define MESSAGE_COUNTER_H
#include "zero/comm/mpi/mpi_internal.h"  // for the tags of messages

static uint64_t *sent_to, asked_for;  // bytes in messages of MPI since the start: to each rank; from all

int MPI_Isend(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    int size;
    MPI_Type_size(type, &size);
    if (tag % ZERO_MPI_TAGS == ZERO_MPI_CHUNKS)
        sent_to[to] += (uint64_t)count * (uint64_t)size;  // not the records of the calls
    return PMPI_Isend(buf, count, type, to, tag, comm, request);
}

int MPI_Irecv(void *buf, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
    int size;
    MPI_Type_size(type, &size);
    if (tag % ZERO_MPI_TAGS == ZERO_MPI_CHUNKS) asked_for += (uint64_t)count * (uint64_t)size;
    return PMPI_Irecv(buf, count, type, from, tag, comm, request);
}

#endif
