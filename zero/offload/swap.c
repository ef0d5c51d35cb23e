#include "zero/offload/swap.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "zero/clock.h"

enum buffer_state { EMPTY, READING, CLEAN, HELD, WRITING };

struct buffer {
    enum buffer_state state;
    size_t record;
    char *ptr;
    uint64_t used;  // when it was last acquired, released or prefetched
    zero_aio_request request;
};

struct zero_swap {
    zero_aio *aio;
    int fd;
    uint64_t *offset;  // [num_records + 1], in the file
    size_t num_records, num_buffers, memory_bytes;
    int forget;
    char *memory;
    struct buffer *buffers;
    uint64_t now;
    zero_swap_traffic traffic;
    char *directory, description[128], error[512];
};

#define FAIL(...) (snprintf(err, err_bytes, __VA_ARGS__), -1)

static size_t rounded(size_t bytes) { return (bytes + ZERO_AIO_ALIGN - 1) / ZERO_AIO_ALIGN * ZERO_AIO_ALIGN; }

size_t zero_swap_buffer_bytes(const size_t *bytes, size_t num_records, size_t num_buffers) {
    size_t largest = 0;
    for (size_t r = 0; r < num_records; r++) largest = bytes[r] > largest ? bytes[r] : largest;
    return num_buffers * rounded(largest);
}

size_t zero_swap_file_bytes(const size_t *bytes, size_t num_records) {
    size_t sum = 0;
    for (size_t r = 0; r < num_records; r++) sum += rounded(bytes[r]);
    return sum;
}

// ---- create and destroy ---------------------------------------------------------------------------------------------

// A file without a name. File systems without O_TMPFILE have one for a moment.
static int open_unnamed(const char *directory) {
    const int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd != -1 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
    char path[PATH_MAX + 32];  // the directory has been looked up: it is not longer
    snprintf(path, sizeof path, "%.*s/zero-swap-XXXXXX", PATH_MAX, directory);
    const int named = mkostemp(path, O_CLOEXEC);
    if (named != -1) unlink(path);
    return named;
}

// Reserves the file's space, by writing it where the file system has no other way. Returns an errno.
static int reserve(int fd, uint64_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return EFBIG;  // going beyond it is a signal
    int code;
    do code = posix_fallocate(fd, 0, (off_t)bytes);
    while (code == EINTR);  // by a signal
    return code;
}

// Makes reads and writes go past the page cache. Returns 0, or an errno: some file systems accept the flag, and refuse
// what is read or written with it. buffer: at least ZERO_AIO_ALIGN bytes, which may change.
static int go_direct(int fd, char *buffer) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags == -1 || fcntl(fd, F_SETFL, flags | O_DIRECT) == -1) return errno;
    ssize_t n;
    do n = pread(fd, buffer, ZERO_AIO_ALIGN, 0);
    while (n == -1 && errno == EINTR);
    if (n != -1) do
            n = pwrite(fd, buffer, ZERO_AIO_ALIGN, 0);  // what was there
        while (n == -1 && errno == EINTR);
    if (n != -1) return 0;
    const int code = errno;
    return fcntl(fd, F_SETFL, flags) == -1 ? errno : code;
}

static int open_file(zero_swap *s, char *err, size_t err_bytes) {
    const uint64_t bytes = s->offset[s->num_records];
    s->fd = open_unnamed(s->directory);
    if (s->fd == -1)
        return FAIL("%s: no file for offloaded state can be created there: %s: choose another directory", s->directory,
                    strerror(errno));
    const int code = bytes ? reserve(s->fd, bytes) : 0;
    if (code)
        return FAIL("%s: %llu bytes of offloaded state cannot be written: %s: make room, or choose another directory",
                    s->directory, (unsigned long long)bytes, strerror(code));
    return 0;
}

// Without O_DIRECT io_uring does small buffered writes in the caller's time, so threads do all of it.
static int open_aio(zero_swap *s, const zero_aio_backend *wanted, char *err, size_t err_bytes) {
    const size_t blocks = s->memory_bytes / s->num_buffers / ZERO_AIO_BLOCK + 1, depth = blocks * s->num_buffers;
    const int refused = s->memory_bytes ? go_direct(s->fd, s->memory) : 0, direct = !refused;
    const zero_aio_backend *first = wanted ? wanted : direct ? zero_aio_uring() : NULL, *used = first;
    const char *why = "";
    int code = first ? zero_aio_create(&s->aio, first, depth) : ENOSYS;
    if (code && !wanted) {
        if (first) why = strerror(code);
        used = zero_aio_threads();
        code = zero_aio_create(&s->aio, used, depth);
    }
    if (code) return FAIL("%s: %s", used->name, strerror(code));
    snprintf(s->description, sizeof s->description, "%s%s%s%s, %s%s%s", used->name, *why ? " (io_uring: " : "", why,
             *why ? ")" : "",
             direct ? "O_DIRECT" : "through the page cache (O_DIRECT: ", direct ? "" : strerror(refused),
             direct ? "" : ")");
    return 0;
}

static int create(zero_swap *s, const zero_swap_config *config, char *err, size_t err_bytes) {
    const size_t each = zero_swap_buffer_bytes(config->bytes, config->num_records, 1);
    s->offset = malloc((config->num_records + 1) * sizeof *s->offset);
    s->buffers = calloc(config->num_buffers, sizeof *s->buffers);
    s->memory_bytes = each * config->num_buffers;
    if (!s->offset || !s->buffers) return FAIL("out of host memory");
    s->offset[0] = 0;
    for (size_t r = 0; r < s->num_records; r++) s->offset[r + 1] = s->offset[r] + rounded(config->bytes[r]);
    void *memory = mmap(NULL, s->memory_bytes + !s->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
    if (memory == MAP_FAILED) return FAIL("no memory for %zu bytes of buffers for offloaded state", s->memory_bytes);
    s->memory = memory;
    (void)madvise(memory, s->memory_bytes, MADV_DONTFORK);  // else after a fork a read may end in the child's page
    for (size_t i = 0; i < s->num_buffers; i++) s->buffers[i].ptr = s->memory + i * each;
    return open_file(s, err, err_bytes) || open_aio(s, config->backend, err, err_bytes) ? -1 : 0;
}

zero_swap *zero_swap_create(const zero_swap_config *config, char *err, size_t err_bytes) {
    zero_swap *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(err, err_bytes, "out of host memory");
        return NULL;
    }
    s->fd = -1;
    s->num_records = config->num_records;
    s->num_buffers = config->num_buffers;
    s->forget = config->forget;
    s->directory = strdup(config->directory);
    if (!s->directory)
        snprintf(err, err_bytes, "out of host memory");
    else if (create(s, config, err, err_bytes) == 0)
        return s;
    zero_swap_destroy(s);
    return NULL;
}

void zero_swap_destroy(zero_swap *s) {
    if (!s) return;
    zero_aio_destroy(s->aio);
    if (s->fd != -1) close(s->fd);
    if (s->memory) munmap(s->memory, s->memory_bytes + !s->memory_bytes);
    free(s->offset);
    free(s->buffers);
    free(s->directory);
    free(s);
}

// ---- records --------------------------------------------------------------------------------------------------------

static size_t bytes_of(const zero_swap *s, size_t record) { return s->offset[record + 1] - s->offset[record]; }

static int fail(zero_swap *s, const struct buffer *b, int code) {
    const int write = b->state == WRITING, full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    if (s->error[0]) return -1;
    snprintf(s->error, sizeof s->error, "%s: offloaded state: %s %zu bytes at byte %llu: %s: %s", s->directory,
             write ? "writing" : "reading", bytes_of(s, b->record), (unsigned long long)s->offset[b->record],
             code == ZERO_AIO_ENDED ? "the file ends before" : strerror(code),
             full                     ? "make room, or choose another directory"
             : code == ZERO_AIO_ENDED ? "something has truncated it"
                                      : "check the disk, or choose another directory");
    return -1;
}

// Begins to move a buffer's record from the disk or to it.
static void begin(zero_swap *s, struct buffer *b, enum buffer_state state) {
    const size_t bytes = bytes_of(s, b->record);
    b->state = state;
    *(state == WRITING ? &s->traffic.written : &s->traffic.read) += bytes;
    zero_aio_submit(s->aio, &b->request, s->fd, state == WRITING, b->ptr, bytes, s->offset[b->record]);
}

// The record in a buffer was released, and is on the disk.
static void set_clean(const zero_swap *s, struct buffer *b) {
    b->state = s->forget ? EMPTY : CLEAN;
    if (s->forget) b->used = 0;  // it is taken first
}

// Waits until the disk has finished with a buffer.
static int settle(zero_swap *s, struct buffer *b) {
    if (b->state != READING && b->state != WRITING) return 0;
    const double since = zero_clock();
    const int code = zero_aio_wait(s->aio, &b->request);
    s->traffic.waited_s += zero_clock() - since;
    if (code) return fail(s, b, code);
    if (b->state == WRITING)
        set_clean(s, b);
    else
        b->state = CLEAN;
    return 0;
}

static struct buffer *find(zero_swap *s, size_t record) {
    for (struct buffer *b = s->buffers; b < s->buffers + s->num_buffers; b++)
        if (b->state != EMPTY && b->record == record) return b;
    return NULL;
}

// The buffer that was not used for the longest time, for another record; NULL after an error.
static struct buffer *take(zero_swap *s, size_t record) {
    struct buffer *oldest = NULL;
    for (struct buffer *b = s->buffers; b < s->buffers + s->num_buffers; b++)
        if (b->state != HELD && (!oldest || b->used < oldest->used)) oldest = b;
    if (!oldest) {
        snprintf(s->error, sizeof s->error, "%s: all %zu buffers of offloaded state are acquired", s->directory,
                 s->num_buffers);
        return NULL;
    }
    if (settle(s, oldest) != 0) return NULL;
    oldest->state = EMPTY;
    oldest->record = record;
    return oldest;
}

int zero_swap_prefetch(zero_swap *s, size_t record) {
    if (s->error[0]) return -1;
    struct buffer *b = find(s, record);
    if (b && b->state == WRITING && s->forget && settle(s, b) != 0) return -1;
    if (!b || b->state == EMPTY) {
        if (!(b = take(s, record))) return -1;
        begin(s, b, READING);
    }
    b->used = ++s->now;
    return 0;
}

void *zero_swap_acquire(zero_swap *s, size_t record) {
    if (zero_swap_prefetch(s, record) != 0) return NULL;
    struct buffer *b = find(s, record);
    if (settle(s, b) != 0) return NULL;
    b->state = HELD;
    b->used = ++s->now;
    return b->ptr;
}

int zero_swap_release(zero_swap *s, size_t record, int changed) {
    if (s->error[0]) return -1;
    struct buffer *b = find(s, record);
    b->used = ++s->now;
    if (changed)
        begin(s, b, WRITING);
    else
        set_clean(s, b);
    return 0;
}

const char *zero_swap_error(const zero_swap *s) { return s->error; }
const char *zero_swap_description(const zero_swap *s) { return s->description; }
zero_swap_traffic zero_swap_get_traffic(const zero_swap *s) { return s->traffic; }

void *zero_swap_memory(const zero_swap *s, size_t *bytes) {
    *bytes = s->memory_bytes;
    return s->memory;
}
