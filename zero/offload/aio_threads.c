// aio_threads.c: blocks of aio.h by threads, each of which does one at a time.
#include "zero/offload/aio.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_THREADS = 8 };

struct list {
    zero_aio_block *first, **last;
};

struct threads {
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    struct list waiting, done;
    int stop;
    size_t count;
    pthread_t ids[MAX_THREADS];
};

static void append(struct list *l, zero_aio_block *b) {
    b->next = NULL;
    *l->last = b;
    l->last = &b->next;
}

static zero_aio_block *take(struct list *l) {
    zero_aio_block *b = l->first;
    l->first = b->next;
    if (!l->first) l->last = &l->first;
    return b;
}

static void *work(void *arg) {
    struct threads *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->waiting.first && !t->stop) pthread_cond_wait(&t->work, &t->lock);
        if (t->stop) break;
        zero_aio_block *b = take(&t->waiting);
        pthread_mutex_unlock(&t->lock);
        const ssize_t n = b->write ? pwrite(b->fd, b->buffer, b->bytes, (off_t)b->offset)
                                   : pread(b->fd, b->buffer, b->bytes, (off_t)b->offset);
        b->result = n < 0 ? -errno : n;
        pthread_mutex_lock(&t->lock);
        append(&t->done, b);
        pthread_cond_signal(&t->finished);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void destroy(void *state) {
    struct threads *t = state;
    pthread_mutex_lock(&t->lock);
    t->stop = 1;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (size_t i = 0; i < t->count; i++) pthread_join(t->ids[i], NULL);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->finished);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int create(void **state, size_t depth) {
    struct threads *t = calloc(1, sizeof *t);
    sigset_t all, mine;
    int code = 0;
    if (!t) return ENOMEM;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->finished, NULL);
    t->waiting.last = &t->waiting.first;
    t->done.last = &t->done.first;
    sigfillset(&all);  // signals are for the caller's threads
    pthread_sigmask(SIG_SETMASK, &all, &mine);
    while (t->count < MAX_THREADS && t->count < depth && !code) {
        code = pthread_create(&t->ids[t->count], NULL, work, t);
        t->count += !code;
    }
    pthread_sigmask(SIG_SETMASK, &mine, NULL);
    *state = t;
    if (t->count) return 0;  // fewer will do
    destroy(t);
    return code;
}

static void submit(void *state, zero_aio_block *b) {
    struct threads *t = state;
    pthread_mutex_lock(&t->lock);
    append(&t->waiting, b);
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static zero_aio_block *reap(void *state) {
    struct threads *t = state;
    pthread_mutex_lock(&t->lock);
    while (!t->done.first) pthread_cond_wait(&t->finished, &t->lock);
    zero_aio_block *b = take(&t->done);
    pthread_mutex_unlock(&t->lock);
    return b;
}

const zero_aio_backend *zero_aio_threads(void) {
    static const zero_aio_backend backend = { "threads", create, destroy, submit, reap };
    return &backend;
}
