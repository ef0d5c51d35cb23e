// The output directory (-o): one run at a time writes into it, and none mixes its files with another run's. See
// directory.c. Rank 0 calls these; nothing here communicates, prints or exits.
#ifndef TRAINER_DIRECTORY_H
#define TRAINER_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum directory_use {
    DIRECTORY_NEW,       // it must hold no other run's models or log
    DIRECTORY_CONTINUE,  // -y 1: they stay where they are
    DIRECTORY_OVERWRITE  // --overwrite 1: they are moved to DIR/replaced.1, .2, ...
};

// Makes the directory if it is not there, locks it, removes what runs that died have left there, and returns the run's
// nonce, which is never 0. timeout_s: --timeout, by which others judge whether the run is alive. 0 and a message in err
// if that is not possible.
uint64_t directory_open(const char *dir, enum directory_use use, double timeout_s, char *err, size_t err_bytes);

// Whether the lock is still this run's: call it before anything is published. A run that was stopped for long may have
// been taken for dead. Returns 0, or -1 and a message in err.
int directory_check(char *err, size_t err_bytes);

// Removes this run's temporary files, named *.NONCE.tmp (%016llx), and the lock. Does nothing if none is held.
void directory_close(void);

#ifdef __cplusplus
}
#endif
#endif
